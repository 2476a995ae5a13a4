"""Make a workdir from a Hugging Face directory or a TensorFlow checkpoint, for fill-mask, export and --init."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--input",
        required=True,
        help="folder with config.json, model.safetensors and the tokenizer; or bert_config.json, bert_model.ckpt.*, "
        "vocab.txt",
    )
    parser.add_argument("--workdir", required=True, help="the new folder to write")
    parser.add_argument(
        "--lowercase",
        choices=("true", "false"),
        help="whether text is converted to lower case, if no file says it (default: of a TensorFlow checkpoint by "
        "'uncased' or 'cased' in its folder's name, else true)",
    )


def run(arguments: argparse.Namespace) -> None:
    from bert_jax.interchange.workdir import import_into_workdir
    from bert_jax.text.case import Case

    given = Case(None if arguments.lowercase is None else arguments.lowercase == "true")
    print(import_into_workdir(arguments.input, arguments.workdir, given))
