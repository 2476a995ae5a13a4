"""Finds the largest micro-batch with which the step of each phase fits into memory, with few compilations."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from bert_jax.planning.compile import compile_phase
from bert_jax.planning.plan import Change, Machine, PhasePlan, Plan, Recipe, without_length
from bert_jax.program import Note
from bert_jax.reporting.progress import ProgressLine
from bert_jax.rows.phases import Phase
from bert_jax.task import needs_whole_batches

COMPILATIONS = 3  # of a phase, at most
_BITS = 4  # a number of rows is rounded down to so many binary digits


@dataclasses.dataclass(frozen=True)
class LargestMicroBatch:
    """The largest micro-batch of a phase that was found to fit.

    Attributes:
      rows: the rows that a device computes at once.
      own: the rows that a device computes at once with the recipe.
      micro_batches: the fewest parts of the recipe's batch that fit; None if the objective reads whole batches.
    """

    rows: int
    own: int
    micro_batches: int | None


def largest_micro_batches(recipe: Recipe, machine: Machine, plan: Plan, note: Note) -> dict[str, LargestMicroBatch]:
    """Return the largest micro-batch of each phase, by the phase's name. A phase where none is found is left out.

    Memory is nearly linear in the rows, so the number at which a line through two sizes meets the memory is compiled,
    and the line drawn anew. Phases that differ in the size of their batches alone share what is compiled.
    """
    task, experiment = recipe.variant(Change(), machine.devices)
    devices, whole = plan.mesh["data"] * plan.mesh["fsdp"], needs_whole_batches(task)
    found = dict[str, LargestMicroBatch]()
    todo = [*plan.phases]
    while todo:
        first = todo[0]
        group = [one for one in todo if _but_size(one) == _but_size(first)]
        todo = [one for one in todo if one not in group]
        parts = first.micro_batches if whole or all(one.fits for one in group) else max(2, first.micro_batches)

        def compiled(rows: int, phase: Phase = first.phase, parts: int = parts) -> tuple[int, bool]:
            doing = f"trying {rows:,} rows a device in {phase.kind}"
            note(doing)
            sized = dataclasses.replace(phase, batch_size=rows * devices * parts, micro_batches=parts)
            with ProgressLine(0).outside(doing):
                step = compile_phase(task, experiment, sized, machine.devices)
            return step.needed_bytes, machine.holds(step)

        sizes = {_rows(one, devices): (one.compiled.needed_bytes, one.fits) for one in group}
        rows = _search(sizes, first.compiled.memory.state, machine.chip.memory_bytes, compiled)
        for one in group if rows else ():
            total = one.phase.batch_size // devices
            fewest = next(n for n in range(1, total + 1) if total % n == 0 and total // n <= rows)
            own = _rows(one, devices)
            found[one.phase.kind] = LargestMicroBatch(rows, own, None if whole else fewest)
    return found


def _but_size(one: PhasePlan) -> tuple[Phase, bool]:
    """Return the facts, besides the size of its micro-batches, that decide the memory of a step."""
    return without_length(one.phase, batch_size=1, micro_batches=None), one.micro_batches > 1


def _rows(one: PhasePlan, devices: int) -> int:
    return one.phase.batch_size // devices // one.micro_batches


def _search(
    sizes: Mapping[int, tuple[int, bool]], state: int, memory: float, compiled: Callable[[int], tuple[int, bool]]
) -> int:
    """Return the largest number of rows that was found to fit; 0 if none.

    Args:
      sizes: rows -> the bytes that they need, and whether they fit.
      state: the bytes without rows, at least.
      compiled: a function of a number of rows that returns the bytes that they need, and whether they fit.
    """
    sizes = dict(sizes)
    for _ in range(COMPILATIONS if state < memory else 0):
        high = min((rows for rows, (_, fits) in sizes.items() if not fits), default=None)
        guess = _meets(sizes, state, memory)
        if high is not None and not 0 < guess < high:
            guess = (_low(sizes) + high) // 2
        shift = max(0, guess.bit_length() - _BITS)
        guess = guess >> shift << shift
        if guess <= _low(sizes):
            break
        sizes[guess] = compiled(guess)
    return _low(sizes)


def _low(sizes: Mapping[int, tuple[int, bool]]) -> int:
    return max((rows for rows, (_, fits) in sizes.items() if fits), default=0)


def _meets(sizes: Mapping[int, tuple[int, bool]], state: int, memory: float) -> int:
    """Return the rows at which the line through the two sizes nearest to ``memory`` meets it; 0 if unknown.

    A size is left out if it does not fit and the compiler did not say how many bytes it needs.
    """
    known = [(abs(need - memory), rows, need) for rows, (need, fits) in sizes.items() if fits or need > memory]
    if not known:
        return 0
    (_, rows, need), (_, other, least) = (*sorted(known), (0.0, 0, state))[:2]
    slope = (need - least) / (rows - other)
    return max(0, int(rows + (memory - need) / slope)) if slope > 0 else 0
