"""Show how a run stands: state, step, time left, last save, last error."""

from __future__ import annotations

import argparse
import json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workdir", required=True, help="folder of a run")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> None:
    from bert_jax.reporting import status

    print(json.dumps(status.read(arguments.workdir)) if arguments.json else status.describe(arguments.workdir))
