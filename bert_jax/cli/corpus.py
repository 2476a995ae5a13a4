"""Build the tokenized store of the corpus of a recipe, which must name its vocabulary (config.vocab.path)."""

from __future__ import annotations

import argparse

from bert_jax.cli.main import add_config
from bert_jax.corpora.prepare import prepare_corpus
from bert_jax.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument("--output", required=True, help="the new folder to write")


def run(arguments: argparse.Namespace) -> None:
    config = arguments.config
    if not config.vocab.path:
        raise UserError(
            "config.vocab.path is not set; learn one with `bert-jax vocab --config=... --output=vocab.txt` "
            "and add --config.vocab.path=vocab.txt"
        )
    manifest = prepare_corpus(config, config.vocab.path, arguments.output)
    print(json_summary(manifest))
