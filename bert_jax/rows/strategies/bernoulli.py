"""Selects units (groups of positions masked together) independently, each with the probability ``masking.rate``.

ERNIE 1.0 selects phrases and entities in this way (Sun et al. 2019, section 3.2; PaddlePaddle/ERNIE, batching.py). The
number of selected positions is random; its mean is the rate times the number of candidates, whatever the sizes of
units.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from bert_jax.configuration import check_fields
from bert_jax.rows import random
from bert_jax.rows.interfaces import Bools, Ints, Selected
from bert_jax.rows.strategies import whole_unit
from bert_jax.rows.units import first_positions

_TOO_MANY = 1e-4  # the largest share of rows that may select more than P positions


@dataclasses.dataclass(frozen=True)
class Config:
    """The options of the strategy; it draws its own counts (``rows.interfaces.Strategy``).

    Attributes:
      unit_size: the number of positions of a unit that is assumed when P is computed. Where long units are common, set
        this to their usual size.
      rate: set from the rate of ``config.objective.masking``; users do not set it as an option.
    """

    unit_size: float = 2.0
    rate: float = 0.15

    def __post_init__(self) -> None:
        where = "config.objective.masking.options"
        check_fields(self, where, "1 to 1000 is allowed", "unit_size", sound=lambda size: 1 <= size <= 1000)

    def most(self, lengths: Ints) -> Ints:
        """Return, for each length, an upper limit [n] on the number of selected positions.

        With units of ``unit_size``, at most one row in 10,000 exceeds this limit (Bernstein's inequality, 1924).
        """
        doubt, variance = -math.log(_TOO_MANY), self.unit_size * self.rate * (1 - self.rate) * lengths
        slope = self.unit_size * doubt / 3
        above = slope + np.sqrt(slope**2 + 2 * doubt * variance)
        return np.minimum(lengths, np.ceil(self.rate * lengths + above).astype(np.int64))


def select(candidates: Bools, starts: Bools, counts: np.ndarray, keys: random.Bits, options: Config) -> Selected:
    """Select whole units, each by an independent random draw.

    If a row selects more positions than ``counts`` allows, it keeps the units with the smallest draws.
    """
    rows, length = candidates.shape
    taken = starts & (random.uniform(random.fold(keys[:, None], np.arange(length))) < options.rate)
    first = first_positions(candidates, starts)
    selected = candidates & taken[np.arange(rows)[:, None], first]
    over = np.flatnonzero(selected.sum(axis=1) > counts)
    if len(over):
        selected[over] = whole_unit.select(
            selected[over], taken[over], counts[over], keys[over], whole_unit.Config()
        ).positions
    return Selected(selected, first)
