"""Pretrain a model: make what is still missing (vocabulary, corpus), then train. The same command resumes."""

from __future__ import annotations

import argparse

from bert_jax.cli.flags import add_config, add_processes, add_profile, add_short_keys, command_line
from bert_jax.cli.main import in_processes
from bert_jax.errors import UserError
from bert_jax.recipes import recipes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    add_short_keys(parser)
    parser.add_argument("--workdir", required=True, help="the run's folder: checkpoints, metrics, report, export")
    parser.add_argument("--init", help="start from a Hugging Face directory, hf://USER/NAME, or WORKDIR[@step]")
    parser.add_argument(
        "--init_optimizer",
        choices=["fresh", "kept"],
        default="fresh",
        help="kept: with --init=WORKDIR[@step], begin with the moments of its optimizer, as a decay of a long run does",
    )
    parser.add_argument(
        "--vocab",
        help="vocab.txt, .model or tokenizer.json to use, in place of config.vocab.path; with --init it may have new "
        "pieces",
    )
    parser.add_argument(
        "--private",
        action="store_true",
        help="keep text and paths of the corpus out of logs, report, manifest and model card",
    )
    parser.add_argument("--extend", action="store_true", help="resume with another number of steps")
    add_profile(parser)
    add_processes(parser)


def run(arguments: argparse.Namespace) -> int:
    from bert_jax.recipes.pretraining_settings import with_flags
    from bert_jax.runs.prepared import Request
    from bert_jax.runs.run import pretrain

    typed = recipes.typed_keys(arguments.overrides)
    if arguments.vocab and "vocab.path" in typed:
        raise UserError("--vocab takes the place of --config.vocab.path; leave one of them out")
    request = Request(
        workdir=arguments.workdir,
        command=command_line(),
        init=arguments.init,
        init_optimizer=arguments.init_optimizer,
        extend=arguments.extend,
        typed_keys=typed,
        profiled=arguments.profile,
    )
    config = with_flags(arguments.config.to_dict(), arguments.vocab, arguments.private)
    return in_processes(arguments, lambda: pretrain(config, request))
