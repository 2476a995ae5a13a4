"""Says which command a user may type after a plan."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence

from bert_jax.planning.plan import Plan
from bert_jax.planning.topologies import SHAPES, Topology, parse
from bert_jax.program import program

_WORTH_A_SEARCH = 1 / 3  # of the time spent on communication alone: from here on another layout may well be faster


def search_offer(plan: Plan, recipe: Sequence[str], compiles: int) -> list[str]:
    """Return a line that offers ``--search`` if devices wait long for each other; otherwise no line.

    Args:
      recipe: the flags that name and change the recipe.
      compiles: the number of layouts that the search compiles beside the recipe's own.
    """
    share = plan.waiting_share
    if share is None or share < _WORTH_A_SEARCH:
        return []
    seconds = (1 + compiles) * sum(phase.compiled.seconds for phase in plan.phases)
    return [
        f"devices only wait for communication for {100 * share:.0f} % of the time; a search for a faster mesh, "
        f"micro-batches and remat compiles {1 + compiles} layouts, about {math.ceil(seconds / 60)} minutes: "
        f"{_plan(plan, recipe, plan.topology.name)} --search"
    ]


def after(plan: Plan, recipe: Sequence[str], name: str) -> str:
    """Return the line with the next command: the run itself if it fits, otherwise the plan of a larger machine.

    Args:
      recipe: the flags that name and change the recipe, so that it is the one of ``plan``.
      name: what the run may be called.
    """
    topology = plan.topology
    if not plan.fits:
        larger = next_larger(topology) or "KIND:SHAPE"
        return f"next: a larger machine: {_plan(plan, recipe, larger)}"
    if not topology.is_one_host:
        flags = [*recipe, f"--workdir=gs://BUCKET/{name}", "--distributed=auto"]
        return f"next, on every host of {topology.name}: {_typed('preflight', *flags)}, then the same with pretrain"
    devices = f"JAX_NUM_CPU_DEVICES={topology.num_devices} " if plan.chip.platform == "cpu" else ""
    shown = devices if topology.num_devices > 1 else ""
    return f"next, on {topology.name}: {shown}{_typed('pretrain', *recipe, f'--workdir=runs/{name}')}"


def next_larger(topology: Topology) -> str | None:
    """Return the smallest topology of the same kind with more devices; None if there is none."""
    if topology.kind not in SHAPES:
        return f"{topology.kind}:{2 * topology.num_devices}" if topology.num_devices < 5000 else None
    larger = (parse(f"{topology.kind}:{shape}") for shape in SHAPES[topology.kind])
    found = [other for other in larger if other.num_devices > topology.num_devices]
    return min(found, key=lambda other: other.num_devices).name if found else None


def run_name(recipe: str) -> str:
    """Return what a run of a recipe may be called: ``bert_large`` for ``configs/pretrain/bert_large.py``."""
    last = recipe.rpartition("/")[2]
    return re.sub(r"[^\w.-]+", "-", re.sub(r"\.(py|json)(?=:|$)", "", last)).strip("-.") or "run"


def _plan(plan: Plan, recipe: Sequence[str], topology: str) -> str:
    price = plan.rates.price_per_chip_hour
    priced = [] if price is None else [f"--price_per_chip_hour={price:g}"]
    return _typed("plan", *recipe, f"--topology={topology}", *priced)


def _typed(verb: str, *flags: str) -> str:
    return f"{program()} {shlex.join([verb, *flags])}"
