"""Plan a run without its machine: compile its step for a topology; say if it fits, how long it takes, its price."""

from __future__ import annotations

import argparse

from bert_jax.cli.flags import add_config
from bert_jax.program import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument("--topology", required=True, help="KIND:SHAPE, such as v5e:16x16, v5p:4x4x4, h200:8 or cpu:8")
    parser.add_argument(
        "--init", help="plan a run that starts from this model: a Hugging Face directory, or WORKDIR[@step]"
    )
    parser.add_argument("--price_per_chip_hour", type=float, help="in any currency")
    parser.add_argument(
        "--largest_micro_batch",
        action="store_true",
        help="also find how many rows a device can compute at once, with up to three more compilations a phase",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    from bert_jax.runs.recipe_plan import PlanRequest, plan

    start = [f"--init={arguments.init}"] if arguments.init else []
    typed = (f"--config={arguments.recipe}", *start, *arguments.overrides)
    price, largest = arguments.price_per_chip_hour, arguments.largest_micro_batch
    request = PlanRequest(arguments.topology, arguments.init, price, typed, largest)
    result = plan(arguments.config.to_dict(), request, say)
    for line in [result.as_json()] if arguments.json else result.as_lines():
        print(line, flush=True)
    return 0 if result.fits else 1
