"""Steps, time and price: of a number of tokens, and of larger batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from bert_jax.planning.plan import PhasePlan, Plan
from bert_jax.rows.phases import Phases

RULE = "computation grows with the batch, communication does not"


def lengths_for(
    tokens: float, phases: Phases, recipe: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, dict[str, int]], float]:
    """Return the keys of ``config.phases`` for a run of ``tokens`` positions, and how many times as long it is.

    The positions are shared out as they are in ``phases``; padding counts. A phase whose ``recipe`` gives its length as
    ``num_tokens`` keeps that key, all others get ``num_steps``.
    """
    times = tokens / sum(phase.num_steps * phase.batch_size * phase.max_length for phase in phases.phases)
    lengths = {}
    for phase in phases.phases:
        steps = max(1, round(times * phase.num_steps))
        in_tokens = recipe[phase.kind].get("num_tokens") is not None
        positions = steps * phase.batch_size * phase.max_length
        lengths[phase.kind] = {"num_tokens": positions} if in_tokens else {"num_steps": steps}
    return lengths, times


class LargerBatch(NamedTuple):
    """As many rows in batches ``factor`` times as large: the ``plan``, by arithmetic, and what it needs to fit.

    Attributes:
      micro_batches: the number by phase with which the activations fit into memory, by arithmetic; None if none does.
    """

    factor: int
    plan: Plan
    micro_batches: dict[str, int | None]


def larger_batches(plan: Plan, factor: int, whole_batches: bool = False) -> list[LargerBatch]:
    """Return what batches of 1, 2, 4 ... ``factor`` times the size would take, from the compiled steps of ``plan``.

    A step takes its computation as often as the batch is larger, and its communication once.

    Args:
      whole_batches: whether the objective reads whole batches, which allows no micro-batches.
    """
    factors = [2**level for level in range(factor.bit_length()) if 2**level < factor]
    return [_larger(plan, number, whole_batches) for number in (*factors, factor)]


def _larger(plan: Plan, factor: int, whole: bool) -> LargerBatch:
    micro_batches = {phase.phase.kind: _micro_batches(phase, plan, factor, whole) for phase in plan.phases}
    phases = tuple(_phase(phase, factor) for phase in plan.phases)
    every = max(1, round(plan.save_every_steps / factor))
    return LargerBatch(factor, dataclasses.replace(plan, phases=phases, save_every_steps=every), micro_batches)


def _phase(planned: PhasePlan, factor: int) -> PhasePlan:
    of, prediction = planned.phase, planned.prediction
    steps = max(1, round(of.num_steps / factor))
    phase = dataclasses.replace(of, batch_size=of.batch_size * factor, num_steps=steps)
    if prediction is not None:
        seconds = factor * (prediction.seconds - prediction.exposed_seconds) + prediction.exposed_seconds
        prediction = dataclasses.replace(prediction, seconds=seconds)
    compiled = dataclasses.replace(planned.compiled, phase=phase)
    return dataclasses.replace(planned, compiled=compiled, prediction=prediction)


def _micro_batches(planned: PhasePlan, plan: Plan, factor: int, whole: bool) -> int | None:
    memory = planned.compiled.memory
    of_rows = planned.compiled.needed_bytes - memory.state  # at most this grows with the rows that are computed at once
    rows = planned.phase.batch_size * factor // (plan.mesh["data"] * plan.mesh["fsdp"])
    number = planned.micro_batches
    while memory.state + of_rows * factor * planned.micro_batches / number > plan.chip.memory_bytes:
        number *= 2
        if whole or rows % number:
            return None
    return number
