"""Selects one fragment: consecutive positions of text (Song et al. 2019, "MASS", section 3.2).

Where it begins is drawn as in microsoft/MASS, MASS-unsupNMT, src/trainer.py (restricted_mask_sent): at the start of the
text with the probability ``at_start``, at its end with ``at_end``, else anywhere with equal probability, the ends
included. The start symbol, as every special token, is never selected; a special token inside the text does not end the
fragment. ``masking.rate`` says how long it is; MASS takes half of a sentence.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from bert_jax.configuration import check_fields
from bert_jax.errors import UserError
from bert_jax.rows import random
from bert_jax.rows.interfaces import Bools, Selected
from bert_jax.rows.units import first_positions, runs, sizes

_PLACES = 1  # the counter for draws of places; 0 is for draws of the end


@dataclasses.dataclass(frozen=True)
class Config:
    """The options: the probabilities with which a fragment is put at one of the ends."""

    at_start: float = 0.2  # the probability that a fragment begins where the text begins
    at_end: float = 0.2  # the probability that a fragment ends where the text ends

    def __post_init__(self) -> None:
        where = "config.objective.masking.options"
        check_fields(self, where, "0 to 1 is allowed", "at_start", "at_end", sound=lambda share: 0 <= share <= 1)
        if self.at_start + self.at_end > 1 + 1e-9:
            raise UserError(f"{where}.at_start is {self.at_start} and at_end {self.at_end}; their sum may be at most 1")


def select(candidates: Bools, starts: Bools, counts: np.ndarray, keys: random.Bits, options: Config) -> Selected:
    """Select ``counts`` consecutive candidates in each row; of units, those that lie in these positions as a whole."""
    most = candidates.sum(axis=1) - counts  # the largest number of candidates before the fragment
    draw = random.uniform(random.fold(keys, 0))
    anywhere = random.integers(random.fold(keys, _PLACES), most + 1)
    before = np.where(draw < options.at_start, 0, np.where(draw < options.at_start + options.at_end, most, anywhere))
    unit = first_positions(candidates, starts)
    number = np.cumsum(candidates, axis=1) - 1  # of each candidate, counted from 0
    first = np.take_along_axis(number, unit, axis=1)
    after = first + np.take_along_axis(sizes(unit, starts), unit, axis=1)
    selected = candidates & (first >= before[:, None]) & (after <= (before + counts)[:, None])
    return Selected(selected, runs(selected))
