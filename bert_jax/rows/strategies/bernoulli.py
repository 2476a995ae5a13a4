"""Units selected independently: each with the probability ``masking.rate``.

This selects the phrases and entities of ERNIE 1.0 (Sun et al. 2019, section 3.2; PaddlePaddle/ERNIE, batching.py). How
many positions are selected is random, and its mean is the rate for units of any length.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from bert_jax.configuration import check_fields
from bert_jax.rows import random
from bert_jax.rows.features import Bools, Ints, Selected
from bert_jax.rows.strategies import whole_unit
from bert_jax.rows.units import first_positions

_TOO_MANY = 1e-4  # the largest share of rows that may have more than P


@dataclasses.dataclass(frozen=True)
class Config:
    """The options; a ``rows.features.RandomCounts``.

    Attributes:
      unit_size: the size of a unit, in positions, for which P has space; where long units are common, their usual size.
      rate: the rate of ``config.objective.masking``; it is not set here.
    """

    unit_size: float = 2.0
    rate: float = 0.15

    def __post_init__(self) -> None:
        where = "config.objective.masking.options"
        check_fields(self, where, "1 to 1000 is allowed", "unit_size", sound=lambda size: 1 <= size <= 1000)

    def most(self, lengths: Ints) -> Ints:
        """Return counts [n] that units of ``unit_size`` exceed in at most one of 10,000 rows (Bernstein 1924)."""
        doubt, variance = -math.log(_TOO_MANY), self.unit_size * self.rate * (1 - self.rate) * lengths
        slope = self.unit_size * doubt / 3
        above = slope + np.sqrt(slope**2 + 2 * doubt * variance)
        return np.minimum(lengths, np.ceil(self.rate * lengths + above).astype(np.int64))


def select(candidates: Bools, starts: Bools, counts: np.ndarray, keys: random.Bits, options: Config) -> Selected:
    """Return whole units, each selected by its own draw; above ``counts`` a row keeps those with the smallest draws."""
    rows, length = candidates.shape
    taken = starts & (random.uniform(random.fold(keys[:, None], np.arange(length))) < options.rate)
    first = first_positions(candidates, starts)
    chosen = candidates & taken[np.arange(rows)[:, None], first]
    over = np.flatnonzero(chosen.sum(axis=1) > counts)
    if len(over):
        chosen[over] = whole_unit.select(
            chosen[over], taken[over], counts[over], keys[over], whole_unit.Config()
        ).chosen
    return Selected(chosen, first)
