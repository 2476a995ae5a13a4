"""Pretrain variants of a recipe with several seeds and write the table that compares them. The same command resumes."""

from __future__ import annotations

import argparse

from bert_jax.cli.flags import add_grid, command_line, whole_numbers
from bert_jax.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_grid(parser)
    parser.add_argument(
        "--variants",
        default="bert,no_nsp,ltr_no_nsp",
        help="arguments of the recipe's get_config(); the others are compared with the first (default: %(default)s)",
    )
    parser.add_argument(
        "--finetune",
        action="append",
        default=[],
        metavar="RECIPE",
        help="then fine-tune every model with this recipe, such as glue:sst2, or with other values of its keys: "
        '"glue:sst2 --epochs=1"; may be repeated; with it a variant may end in +bilstm',
    )
    parser.add_argument(
        "--finetune_steps",
        type=whole_numbers,
        default=(),
        metavar="S1,S2",
        help="fine-tune these saved steps of every run instead of its end, to see what is learned when",
    )
    parser.add_argument(
        "--workdir", required=True, help="a folder for each run, inputs, table.md, table.json, report.html, picture.svg"
    )


def run(arguments: argparse.Namespace) -> None:
    from bert_jax.experiments.ablation import Ablation, ablate

    if arguments.data is not None and not arguments.finetune:
        raise UserError(f"--data={arguments.data} is read by fine-tuning; give --finetune=RECIPE, or leave it out")
    variants = tuple(name.strip() for name in arguments.variants.split(","))
    tasks = (tuple(arguments.finetune), arguments.data or ".", arguments.finetune_steps)
    common = (arguments.workdir, command_line(), *tasks, arguments.over.removeprefix("config."))
    ablate(Ablation(arguments.recipe, arguments.overrides, variants, arguments.seeds, *common))
