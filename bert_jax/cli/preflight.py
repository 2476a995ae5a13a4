"""Check the hosts of a job before it starts: one table, one verdict; exit code 1 means do not start."""

from __future__ import annotations

import argparse

from bert_jax.cli.flags import add_config, add_processes
from bert_jax.cli.main import in_processes
from bert_jax.recipes import recipes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument("--workdir", required=True, help="the folder for the run")
    parser.add_argument("--init", help="the model from which the run starts, as in pretrain")
    add_processes(parser)


def run(arguments: argparse.Namespace) -> int:
    from bert_jax.cluster import distributed
    from bert_jax.inspection.check import as_table
    from bert_jax.machine.preflight import preflight

    checks, typed = [], recipes.typed_keys(arguments.overrides)

    def check() -> None:
        checks.extend(preflight(arguments.config.to_dict(), arguments.workdir, arguments.init, typed))
        if distributed.is_first():
            print(as_table(checks))

    code = in_processes(arguments, check, alike=False)
    return code or int(any(check.status == "bad" for check in checks))
