"""Learn a vocabulary, WordPiece, sentencepiece or byte-level BPE, from the corpus of a recipe."""

from __future__ import annotations

import argparse

from bert_jax.cli.main import add_config
from bert_jax.corpora.prepare import prepare_vocabulary
from bert_jax.corpora.workplace import parents_removed
from bert_jax.program import program


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument(
        "--output",
        required=True,
        help="the vocab.txt to write; spiece.model for sentencepiece, tokenizer.json for byte_bpe",
    )


def run(arguments: argparse.Namespace) -> None:
    with parents_removed(arguments.output):
        tokenizer = prepare_vocabulary(arguments.config.to_dict(), arguments.output, print)
    asked = arguments.config.get("vocab", {})
    path = asked.get("path")
    size = asked.get("size", 0)
    shortfall = (
        f", fewer than the {size:,} asked for: nothing else in the text is frequent enough"
        if tokenizer.size < size
        else ""
    )
    print(f"{tokenizer.size:,} pieces in {arguments.output}{f', a copy of {path}' if path else shortfall}")
    print(f'next: {program()} tokenize --vocab={arguments.output} "some text"')
