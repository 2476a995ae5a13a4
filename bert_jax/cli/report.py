"""Write report.html of a run again: curves, figures, configuration and lineage on one page."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workdir", required=True, help="folder of a run")


def run(arguments: argparse.Namespace) -> None:
    from bert_jax.reporting.report import write_report

    print(write_report(arguments.workdir))
