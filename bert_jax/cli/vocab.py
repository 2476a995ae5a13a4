"""Learn a vocabulary, WordPiece, sentencepiece or byte-level BPE, from the corpus of a recipe."""

from __future__ import annotations

import argparse

from bert_jax.cli.flags import add_config
from bert_jax.configuration import build
from bert_jax.corpora.prepare import CorpusConfig, VocabularyConfig, prepare_vocabulary
from bert_jax.corpora.workplace import clean_up_parents
from bert_jax.errors import UserError
from bert_jax.program import program
from bert_jax.runs.key_names import is_finetuning


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument(
        "--output",
        required=True,
        help="the vocab.txt to write; spiece.model for sentencepiece, tokenizer.json for byte_bpe",
    )


def run(arguments: argparse.Namespace) -> None:
    config = arguments.config.to_dict()
    vocab = build(VocabularyConfig, config.get("vocab", {}), "config.vocab")
    if is_finetuning(config) and not vocab.path:
        raise UserError(
            "this recipe is one for fine-tuning and names no corpus to learn a vocabulary from; "
            "choose one of configs/pretrain"
        )
    corpus = build(CorpusConfig, config.get("corpus", {}), "config.corpus")
    with clean_up_parents(arguments.output):
        tokenizer = prepare_vocabulary(vocab, corpus, arguments.output, print)
    shortfall = (
        f", fewer than the {vocab.size:,} asked for: nothing else in the text is frequent enough"
        if tokenizer.size < vocab.size
        else ""
    )
    print(f"{tokenizer.size:,} pieces in {arguments.output}{f', a copy of {vocab.path}' if vocab.path else shortfall}")
    print(f'next: {program()} tokenize --vocab={arguments.output} "some text"')
