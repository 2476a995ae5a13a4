"""Fill the [MASK]s of texts with the five most likely words, with their probabilities."""

from __future__ import annotations

import argparse
import dataclasses
import json

from bert_jax.cli.flags import add_workdir


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "texts",
        nargs="+",
        metavar="TEXT",
        help='such as "The [MASK] of the array."; a tokenizer\'s own <mask> is read too',
    )
    add_workdir(parser, "a run or of an import, or a Hugging Face directory")
    parser.add_argument("--json", action="store_true", help="print one JSON object per text")


def run(arguments: argparse.Namespace) -> None:
    from bert_jax.features.fill_mask import fill_mask
    from bert_jax.interchange.loading import load

    for filled in fill_mask(load(arguments.workdir, arguments.step), arguments.texts):
        print(json.dumps(dataclasses.asdict(filled), ensure_ascii=False) if arguments.json else filled)
