"""Make a workdir of a Hugging Face directory, for fill-mask, export and --init."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--input", required=True, help="folder with config.json, model.safetensors and the tokenizer")
    parser.add_argument("--workdir", required=True, help="the new folder to write")


def run(arguments: argparse.Namespace) -> None:
    from bert_jax.interchange.workdir import import_into_workdir

    print(import_into_workdir(arguments.input, arguments.workdir))
