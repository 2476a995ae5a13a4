"""Write a run's model as a Hugging Face directory that transformers loads."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workdir", required=True, help="folder of a run or of an import")
    parser.add_argument("--output", required=True, help="the new folder to write")
    parser.add_argument("--step", type=int, help="a saved step (default: the newest)")


def run(arguments: argparse.Namespace) -> None:
    from bert_jax.interchange.workdir import export_workdir

    print(export_workdir(arguments.workdir, arguments.output, arguments.step))
