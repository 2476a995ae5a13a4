"""Rows of a mixture: exact shares, every row of every part in its turn, nothing that depends on who asks."""

import numpy as np
import pytest

from bert_jax.rows import random
from bert_jax.rows.mixture import TURN, MixedRows, _rows_of_a_turn
from bert_jax.task import RowSource


class Numbers(RowSource):
    """Rows that say which they are."""

    rows_per_epoch = 0

    def __init__(self, part, rows_per_epoch):
        self.part, self.rows_per_epoch, self.prepared = part, rows_per_epoch, []

    def rows(self, epochs, indices):
        assert (indices < self.rows_per_epoch).all()
        return {"address": np.stack([np.full_like(epochs, self.part), epochs, indices], axis=1)}

    def prepare(self, epoch):
        self.prepared.append(epoch)


def mixed(parts=(0.5, 0.3, 0.2), sizes=(1000, 70, 5000)):
    sources = [Numbers(part, size) for part, size in enumerate(sizes)]
    return MixedRows(sources, parts, random.key("test")), sources


def addresses(source, first, count):
    epochs, indices = np.divmod(np.arange(first, first + count), source.rows_per_epoch)
    return source.rows(epochs, indices)["address"]


def test_each_turn_has_the_shares_and_each_part_its_rows_in_order_of_turns():
    source, _ = mixed()
    found = addresses(source, 0, 20 * TURN)
    counts = _rows_of_a_turn((0.5, 0.3, 0.2))
    for turn in range(20):
        here = found[turn * TURN : (turn + 1) * TURN]
        np.testing.assert_array_equal(np.bincount(here[:, 0]), counts)
    for part, size in enumerate((1000, 70, 5000)):
        number = found[found[:, 0] == part] @ np.array([0, size, 1])
        np.testing.assert_array_equal(np.sort(number), np.arange(20 * counts[part]))  # none twice, none left out


def test_rows_are_shuffled_within_a_turn():
    found = addresses(mixed((0.5, 0.5), (10, 10))[0], 0, 8 * TURN)[:, 0]
    halves = found.reshape(8, 2, -1).mean(axis=2)
    assert np.abs(halves - 0.5).max() < 4 * 0.5 / np.sqrt(TURN / 2)
    assert (found[:TURN] != found[TURN : 2 * TURN]).mean() > 0.3


def test_a_row_does_not_depend_on_the_others_asked_for():
    source, _ = mixed()
    whole = addresses(source, 0, 3 * TURN)
    order = np.random.default_rng(0).permutation(3 * TURN)
    epochs, indices = np.divmod(order, source.rows_per_epoch)
    np.testing.assert_array_equal(source.rows(epochs, indices)["address"], whole[order])


def test_the_next_epoch_of_a_part_is_prepared_once():
    source, parts = mixed()
    for step in range(8):
        addresses(source, step * 256, 256)
    assert parts[1].prepared == sorted(parts[1].prepared)  # 70 rows, 307 a turn
    assert parts[1].prepared[-1] == 9
    assert set(parts[2].prepared) == {1}


@pytest.mark.parametrize("parts", [(1.0,), (0.5, 0.5), (0.9999, 0.00005, 0.00005), (1 / 3, 1 / 3, 1 / 3)])
def test_counts_of_a_turn(parts):
    counts = _rows_of_a_turn(parts)
    assert counts.sum() == TURN
    assert counts.min() >= 1
    assert np.abs(counts - np.array(parts) * TURN).max() <= 2
