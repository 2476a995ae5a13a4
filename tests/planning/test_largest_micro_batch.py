"""The largest micro-batch that a plan names fits, and a micro-batch that is an eighth larger does not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from bert_jax.planning import page
from bert_jax.planning.compile import compile_phase
from bert_jax.planning.largest_micro_batch import COMPILATIONS, _search, largest_micro_batches
from bert_jax.planning.plan import Change, make_plan
from tests.planning import tiny
from tests.planning.test_plan import with_memory

STATE, MEMORY = 1_000, 100_000


@pytest.mark.parametrize("own", [1, 8, 500, 5_000])
@pytest.mark.parametrize(
    "need",
    [
        lambda rows: STATE + 100 * rows,
        lambda rows: STATE + 20_000 + 130 * rows,  # gradients, which do not grow with the rows
        lambda rows: STATE + 150 * -(-rows // 8) * 8,  # padded
        lambda rows: STATE + 5_000 + 90 * rows + rows * rows // 50,
    ],
)
@pytest.mark.parametrize("says", [True, False])
def test_few_compilations_find_it(own: int, need: Callable[[int], int], says: bool) -> None:
    asked: list[int] = []

    def compiled(rows: int) -> tuple[int, bool]:
        asked.append(rows)
        return size(rows)

    def size(rows: int) -> tuple[int, bool]:
        fits = need(rows) <= MEMORY
        return need(rows) if fits or says else 1, fits  # a compiler may not say what a program would have needed

    found = _search({own: size(own)}, STATE, MEMORY, compiled)
    most = max(rows for rows in range(2_000) if need(rows) <= MEMORY)
    assert len(asked) <= COMPILATIONS
    assert own not in asked
    assert (0.85 if says else 0.5) * most <= found <= most


def test_a_state_that_is_too_large_is_not_compiled_again() -> None:
    assert _search({8: (300, False)}, 200, 100, lambda rows: pytest.fail(f"{rows} were compiled")) == 0


@pytest.mark.heavy
@pytest.mark.parametrize("share", [5.0, 0.6])
def test_what_is_found_is_the_largest(share: float) -> None:
    """The two phases differ in the size of their batches. They do not fit if ``share`` is below 1."""
    sizes = {"num_steps": 1000, "batch_size": 768, "max_length": 32}
    recipe = tiny.recipe(phases={"phase1": sizes, "phase2": {**sizes, "batch_size": 1536}})
    machine = tiny.machine()
    memory = make_plan(recipe, machine).phases[0].compiled.memory
    small = with_memory(machine, memory.total + (share - 1) * memory.temporaries)
    tried: list[str] = []
    plan = make_plan(recipe, small)
    found = largest_micro_batches(recipe, small, plan, tried.append)
    assert len(tried) <= COMPILATIONS
    rows = found["phase1"].rows
    assert rows == found["phase2"].rows
    assert (found["phase1"].own, found["phase2"].own) == (96, 192)
    task, experiment = recipe.variant(Change(), small.devices)
    parts, phase = (1 if share > 1 else 2), plan.phases[0].phase
    for number, fits in ((rows, True), (-(-rows * 9 // 8), False)):
        sized = dataclasses.replace(phase, batch_size=8 * parts * number, micro_batches=parts)
        assert small.holds(compile_phase(task, experiment, sized, small.devices)) == fits
    lines = page.largest_lines(plan, found)
    assert lines[0].startswith(f"phase1: the largest micro-batch that fits has {rows:,} rows a device, the recipe's 96")
    for line, total in zip(lines, (96, 192), strict=True):
        fewest = min(n for n in range(1, total + 1) if total % n == 0 and total / n <= rows)
        assert line.endswith(f": micro_batches={fewest} is enough") == (fewest > 1)
