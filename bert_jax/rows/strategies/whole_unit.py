"""Selects whole units in random order, as long as they fit; with words as units this is whole-word masking.

As in google-research/bert, create_pretraining_data.py of 2019-05: a unit that would exceed the count is skipped and the
search goes on, so long units are selected a little less often. If every unit has one position, the result equals
the result of ``token`` bit for bit.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from bert_jax.rows import random
from bert_jax.rows.interfaces import Bools, Selected
from bert_jax.rows.strategies.token import ranks
from bert_jax.rows.units import first_positions, sizes


@dataclasses.dataclass(frozen=True)
class Config:
    """The options: this strategy has none."""


def select(candidates: Bools, starts: Bools, counts: np.ndarray, keys: random.Bits, options: Config) -> Selected:
    """Select whole units with at most ``counts`` positions in a row; a unit that does not fit is skipped."""
    del options
    first = first_positions(candidates, starts)
    size = sizes(first, starts)
    order = np.argsort(ranks(starts, keys), axis=1)
    left, taken = counts.astype(np.int64), np.zeros_like(candidates)
    units, rows = starts.sum(axis=1), np.arange(len(counts))
    for place in range(int(units.max(initial=0))):
        going = np.flatnonzero((left > 0) & (place < units))
        if not len(going):
            break
        here = order[going, place]
        fits = size[going, here] <= left[going]
        taken[going[fits], here[fits]] = True
        left[going[fits]] -= size[going[fits], here[fits]]
    selected = candidates & taken[rows[:, None], first]
    return Selected(selected, first)
