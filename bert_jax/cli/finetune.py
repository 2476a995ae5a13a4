"""Fine-tune a model on labelled examples; the same command resumes."""

from __future__ import annotations

import argparse

from bert_jax.cli.flags import add_config, add_processes, add_profile, add_short_keys, command_line
from bert_jax.cli.main import in_processes
from bert_jax.recipes import recipes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    add_short_keys(parser)
    parser.add_argument("--workdir", required=True, help="the run's folder: checkpoints, predictions, report, export")
    parser.add_argument("--data", default=".", help="the folder with the files of config.data.splits")
    parser.add_argument(
        "--init", help="a Hugging Face directory, hf://USER/NAME, or WORKDIR[@step]; without it, random parameters"
    )
    add_profile(parser)
    add_processes(parser)


def run(arguments: argparse.Namespace) -> int:
    from bert_jax.runs.prepared import Request
    from bert_jax.runs.run import finetune

    typed = recipes.typed_keys(arguments.overrides)
    request = Request(
        workdir=arguments.workdir,
        command=command_line(),
        init=arguments.init,
        data=arguments.data,
        typed_keys=typed,
        profiled=arguments.profile,
    )
    return in_processes(arguments, lambda: finetune(arguments.config.to_dict(), request))
