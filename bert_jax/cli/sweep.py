"""Fine-tune over a grid of values and seeds and write the table. The same command resumes."""

from __future__ import annotations

import argparse

from bert_jax.cli.flags import add_grid, command_line
from bert_jax.errors import UserError
from bert_jax.parts.own_code import trust_copies
from bert_jax.recipes import recipes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_grid(parser)
    add(
        "--vary",
        action="append",
        default=[],
        metavar="KEY=V1,V2",
        help="a key of the config and its values, such as learning_rate=2e-5,5e-5 or weights=pretrained,fresh or"
        " data.train_fraction=0.01,0.1,1; also init=DIR,none; may be repeated",
    )
    add("--choose", default="", metavar="KEYS", help="keep only the best values of these keys in the table")
    add("--init", help="a Hugging Face directory, or WORKDIR[@step]; without it, random parameters")
    add("--workdir", required=True, help="a folder for each run, table.md, table.json, report.html, picture.svg")


def run(arguments: argparse.Namespace) -> None:
    if "seed" in recipes.typed_keys(arguments.overrides):
        raise UserError("--config.seed: a grid has the seeds of --seeds=0,1,2; leave it out")
    vary = {}
    for text in arguments.vary:
        key, equals, values = text.partition("=")
        if not equals:
            raise UserError(f"--vary={text} has no values; write --vary=KEY=V1,V2")
        if key.removeprefix("config.") in vary:
            raise UserError(f"--vary={key} is given twice; write all its values into one, as {key}=V1,V2")
        vary[key.removeprefix("config.")] = tuple(values.split(","))
    if "init" in vary and arguments.init:
        raise UserError(f"--init={arguments.init} does not count beside --vary=init; name that model there too")
    for source in vary.get("init", ()) if arguments.trust_code else ():
        trust_copies(source)
    from bert_jax.experiments.sweep import Sweep, sweep

    choose = tuple(key.removeprefix("config.") for key in arguments.choose.split(",") if key)
    over = arguments.over.removeprefix("config.")
    common = (arguments.workdir, arguments.data or ".", arguments.init, choose, command_line(), over)
    sweep(Sweep(arguments.recipe, arguments.overrides, vary, arguments.seeds, *common))
