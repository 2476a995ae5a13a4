"""Batches of several sources: how many of each an epoch has, and that each source goes through its epochs in order."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from scipy import stats

from bert_jax.rows.dealt import DealtRows, passes_of
from bert_jax.rows.phases import Phase, Phases, steps_per_epoch
from bert_jax.task import Bucket, RowSource, Step

BATCH = 4
SIZES = {"large": 160, "short": 38, "small": 22}  # rows; "short" and "small" are the two lengths of one source


class Numbered(RowSource):
    """Rows that say which they are."""

    def __init__(self, name: str, count: int):
        self.name, self.count = name, count

    @property
    def rows_per_epoch(self) -> int:
        return self.count

    def rows(self, epochs: np.ndarray, indices: np.ndarray) -> dict[str, np.ndarray]:
        assert ((indices >= 0) & (indices < self.count)).all()
        return {self.name: np.stack([epochs, indices], axis=1)}


def make(large: tuple[float, ...] = (1.0,), others: tuple[float, ...] = (1.0,)) -> DealtRows:
    pair = (Bucket("short", SIZES["short"], 1, others), Bucket("small", SIZES["small"], 1, others))
    one, two = Numbered("one", SIZES["large"]), Numbered("two", SIZES["short"] + SIZES["small"])
    return DealtRows([(one, (Bucket("large", SIZES["large"], 1, large),)), (two, pair)])


def steps_of(source: DealtRows, count: int) -> list[Step]:
    phases = Phases((Phase(count, BATCH, 8, "train"),))
    return [phases.rows_of(number, {}, source.buckets) for number in range(count)]


def test_an_epoch_has_every_row_once() -> None:
    source = make()
    per_epoch = int(steps_per_epoch(0, source.buckets, BATCH))
    assert per_epoch == 40 + 10 + 6
    for epoch in range(3):
        seen = Counter[tuple[str, int]]()
        for step in steps_of(source, 3 * per_epoch)[epoch * per_epoch :][:per_epoch]:
            [(name, rows)] = source.rows(step.epochs, step.rows).items()
            assert (name == "one") == (step.kind == "large")
            assert (rows[:, 0] == epoch).all()
            seen.update((name, int(row)) for row in rows[:, 1])
        assert len(seen) == 160 + 60
        twice = {row: times for row, times in seen.items() if times > 1}
        assert twice == {("two", 0): 2, ("two", 1): 2, ("two", 38): 2, ("two", 39): 2}, "they fill up the last batches"


def test_tasks_come_in_random_order_in_proportion_to_their_batches() -> None:
    source = make()
    steps = steps_of(source, 56 * 50)
    counts = Counter(step.kind for number, step in enumerate(steps) if number % 56 < 14)  # a quarter of each epoch
    expected = {kind: 50 * 14 * batches / 56 for kind, batches in {"large": 40, "short": 10, "small": 6}.items()}
    found = stats.chisquare([counts[kind] for kind in expected], list(expected.values()))
    assert found.pvalue > 1e-3, counts
    follow = np.mean([a.kind == b.kind for a, b in zip(steps, steps[1:], strict=False)])
    assert follow == pytest.approx((40**2 + 10**2 + 6**2) / 56**2, abs=0.03), "each is drawn by itself"


def test_shares_hold_and_each_source_goes_on_where_it_was() -> None:
    """Over three epochs the share of the large source falls from 0.7 to 0.26, which is no whole number of batches."""
    sizes, shares = {"one": 40, "two": 16}, [0.7, 0.5, 0.26]
    every = [passes_of(sizes, {"one": share, "two": 1 - share}) for share in shares]
    source = make(*(tuple(passes[name] for passes in every) for name in sizes))
    assert steps_per_epoch(0, source.buckets, BATCH) == 56
    needed, first_row = {"large": 40, "short": 10, "small": 6}, {"large": 0, "short": 160, "small": 198}
    steps, read = steps_of(source, 56 * 30), Counter[str]()
    for epoch in range(30):
        share, here = shares[min(epoch, 2)], dict[str, list[int]]()
        for step in steps[56 * epoch :][:56]:
            batch = (int(step.rows[0]) - first_row[step.kind]) // BATCH
            here.setdefault(step.kind, []).append(int(step.epochs[0]) * needed[step.kind] + batch)
        for kind, portion in {"large": share, "short": (1 - share) * 10 / 16, "small": (1 - share) * 6 / 16}.items():
            assert abs(len(here[kind]) - 56 * portion) < 1, (epoch, kind)
            assert sorted(here[kind]) == list(range(read[kind], read[kind] + len(here[kind]))), "it goes on"
            read[kind] += len(here[kind])
    assert read["large"] / (56 * 30) == pytest.approx((0.7 + 0.5 + 28 * 0.26) / 30, abs=4e-3)


def test_a_step_is_a_pure_function_of_its_number() -> None:
    passes = passes_of({"one": 40, "two": 16}, {"one": 1.0, "two": 3.3})
    source = make((passes["one"],), (passes["two"],))
    forth, phases = steps_of(source, 300), Phases((Phase(300, BATCH, 8, "train"),))
    for number in reversed(range(0, 300, 7)):
        step = phases.rows_of(number, {}, make((passes["one"],), (passes["two"],)).buckets)
        assert step.kind == forth[number].kind
        np.testing.assert_array_equal(step.rows, forth[number].rows)
        np.testing.assert_array_equal(step.epochs, forth[number].epochs)
