"""Selects n-grams of units, each within a context that stays (Yang et al. 2019, "XLNet", section 2.6).

As in zihangdai/xlnet, data_utils.py, _sample_mask: walk through the row from its start. Draw n from 1 to ``longest``
with shares proportional to 1 / n, and put an n-gram into a context of ``context`` * n other units, of which a uniformly
drawn number, 0 included, stands to the left. The next context begins where this one ends. The walk stops where the
count is reached, which may shorten its last n-gram, or where an n-gram would exceed the row. The count of a row is its
goal (``masking.rate`` 1/6): what the walk leaves is filled with single units at random, as long as they fit.

An n-gram is of whole words if ``masking.unit`` is "word", as the paper says. The published code differs: by an error
its n-grams have n pieces whatever the words, of which the first begins a word. So here the context is counted in units
too; there in pieces, which would, with words of several pieces, reach the goal before the row's end. Also there each
half of a row has its own walk and goal, no n-gram ends with the last position, and single pieces fill the rest.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from bert_jax.configuration import check_fields
from bert_jax.rows import random
from bert_jax.rows.interfaces import Bools, Ints, Selected
from bert_jax.rows.strategies import ngrams, whole_unit
from bert_jax.rows.units import first_positions, runs, sizes

_FILLING = 1 << 33  # the counter for the draws of single units; counters below are for the walk


@dataclasses.dataclass(frozen=True)
class Config:
    """The options: n-grams of 1 to ``longest`` units, and K."""

    longest: int = 5  # the most units of an n-gram
    context: int = 6  # K: an n-gram of n units stands among K n others, so the walk selects one unit of K + 1

    def __post_init__(self) -> None:
        where = "config.objective.masking.options"
        check_fields(self, where, "1 to 100 is allowed", "longest", "context", sound=lambda n: 1 <= n <= 100)


def select(candidates: Bools, starts: Bools, counts: np.ndarray, keys: random.Bits, options: Config) -> Selected:
    """Select n-grams, then single units, with at most ``counts`` positions in a row."""
    first = first_positions(candidates, starts)
    unit = np.cumsum(starts, axis=1) - 1  # [n, L] of each candidate
    taken = candidates & np.take_along_axis(_walk(starts, keys, options), np.maximum(unit, 0), axis=1)
    before: Ints = np.cumsum(taken, axis=1) - taken  # [n, L] positions selected to the left
    after = np.take_along_axis(before + sizes(first, starts), first, axis=1)  # with the whole unit of the position
    taken &= after <= counts[:, None]
    left, others = counts - taken.sum(axis=1), candidates & ~taken
    keys = random.fold(keys, _FILLING)
    filled = whole_unit.select(others, starts & ~taken, left, keys, whole_unit.Config())
    selected = taken | filled.positions
    return Selected(selected, runs(selected))


def _walk(starts: Bools, keys: random.Bits, options: Config) -> Bools:
    """Return [n, L] whether each unit of a row, in order, is in an n-gram of the walk."""
    rows, length = starts.shape
    steps = np.arange(length // (options.context + 1) + 1)
    gram = ngrams.Config(longest=options.longest).lengths(random.fold(keys[:, None], 2 * steps))  # [n, steps]
    around = options.context * gram
    begin = np.cumsum(around + gram, axis=1) - around - gram
    begin += random.integers(random.fold(keys[:, None], 2 * steps + 1), around)
    row, step = np.nonzero(begin + gram <= starts.sum(axis=1, keepdims=True))
    edges = np.zeros((rows, length + 1), np.int64)
    np.add.at(edges, (row, begin[row, step]), 1)
    np.add.at(edges, (row, (begin + gram)[row, step]), -1)
    return np.cumsum(edges, axis=1)[:, :length] > 0
