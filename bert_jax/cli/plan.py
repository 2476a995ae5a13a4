"""Plan a run without its machine: compile its step for a topology; say if it fits, how long it takes, its price."""

from __future__ import annotations

import argparse

from bert_jax.cli.main import add_config, print_note


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument("--topology", required=True, help="KIND:SHAPE, such as v5e:16x16, v5p:4x4x4, h200:8 or cpu:8")
    parser.add_argument("--search", action="store_true", help="try meshes, micro-batches and remat; take the fastest")
    parser.add_argument(
        "--compiles", type=int, help="layouts that a search compiles beside the recipe's own (default: 3)"
    )
    parser.add_argument(
        "--scale", type=int, help="advise on batches this many times larger (default: chosen by the chip)"
    )
    parser.add_argument("--price_per_chip_hour", "--price-per-chip-hour", type=float, help="in any currency")
    parser.add_argument(
        "--restarts_per_day", "--restarts-per-day", type=float, default=1.0, help="restarts to allow for (default: 1)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    from bert_jax.runs.recipe_plan import PlanRequest, plan

    names = ("topology", "price_per_chip_hour", "restarts_per_day", "search", "compiles", "scale")
    request = PlanRequest(**{name: getattr(arguments, name) for name in names})
    found = plan(arguments.config.to_dict(), request, print_note)
    print(found.as_json() if arguments.json else "\n".join(found.as_lines()))
    return 0 if found.fits else 1
