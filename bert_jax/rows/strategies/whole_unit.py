"""Whole units, in random order, as long as they fit: whole-word masking.

google-research/bert, create_pretraining_data.py of 2019-05: a unit that would exceed the count is left out and the
search goes on, so long units are taken a little less often. With units of one position this is ``token``, bit for bit.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from bert_jax.rows import random
from bert_jax.rows.features import Bools, Selected
from bert_jax.rows.strategies.token import ranks
from bert_jax.rows.units import first_positions, sizes


@dataclasses.dataclass(frozen=True)
class Config:
    """This strategy has no options."""


def select(candidates: Bools, starts: Bools, counts: np.ndarray, keys: random.Bits, options: Config) -> Selected:
    """Return whole units of at most ``counts`` positions per row; if any are left, the longest would not fit."""
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
    chosen = candidates & taken[rows[:, None], first]
    return Selected(chosen, first)
