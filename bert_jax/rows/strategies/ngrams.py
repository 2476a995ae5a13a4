"""Selects n-grams of units, in random order, as long as they fit (Lan et al. 2020, "ALBERT", section 4.1).

As in google-research/albert, create_pretraining_data.py: the units are visited in random order, and each begins an
n-gram of a randomly drawn length. An n-gram that would exceed the count is shortened, or left out if even its first
unit is too long. An n-gram that would include a unit already selected is left out. An n-gram ends before a special
token.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from bert_jax.configuration import check_fields
from bert_jax.errors import UserError
from bert_jax.rows import random
from bert_jax.rows.interfaces import Bools, Ints, Selected
from bert_jax.rows.strategies.token import ranks
from bert_jax.rows.units import first_positions, sizes

_LENGTHS = 1 << 32  # the counter for draws of lengths, larger than any position


@dataclasses.dataclass(frozen=True)
class Config:
    """The options. Lengths n from 1 to ``longest`` have the ``shares``, or shares proportional to 1 / n.

    For ``longest`` 3 the latter are .545, .273 and .182.
    """

    longest: int = 3  # the most units of an n-gram
    shares: tuple[float, ...] | None = None  # how often lengths 1, 2, ... are drawn; if None, proportional to 1 / n

    def __post_init__(self) -> None:
        where = "config.objective.masking.options"
        check_fields(self, where, "1 to 100 is allowed", "longest", sound=lambda n: 1 <= n <= 100)
        shares = self.shares
        if shares is not None and not (len(shares) == self.longest and min(shares) >= 0 < sum(shares)):
            raise UserError(
                f"{where}.shares is {shares}; {self.longest} numbers are needed (longest), 0 or more, and not all 0"
            )

    def lengths(self, bits: random.Bits) -> Ints:
        """Return a random length, in units, for each element of ``bits``, which are 64 random bits each."""
        shares = np.cumsum(self.shares or 1 / np.arange(1, self.longest + 1))
        return 1 + np.searchsorted(shares[:-1] / shares[-1], random.uniform(bits), side="right")


def select(candidates: Bools, starts: Bools, counts: np.ndarray, keys: random.Bits, options: Config) -> Selected:
    """Select n-grams with at most ``counts`` positions in a row."""
    rows, length = candidates.shape
    unit, row = first_positions(candidates, starts), np.arange(rows)
    places = int(starts.sum(axis=1).max(initial=0))
    here = np.argsort(ranks(starts, keys), axis=1).T[:places]  # [U, n] where units begin, in random order
    reached = _unit_starts(sizes(unit, starts), options.longest)[row, here]  # [U, n, longest + 1]
    sized = reached[..., 1:] - here[..., None]  # how many positions the first 1, 2, ... units of an n-gram have
    drawn = options.lengths(random.fold(random.fold(keys, _LENGTHS), here)) * starts[row, here]
    reached += row[:, None] * (length + 1)
    taken = np.zeros(rows * (length + 1), np.bool_)  # whether a unit is taken, at its first position
    begins = np.zeros_like(candidates)  # whether an n-gram begins
    left, numbers = counts.astype(np.int64), np.arange(options.longest)
    for place in range(places):
        if not left.any():
            break
        number = np.minimum(drawn[place], (sized[place] <= left[:, None]).sum(axis=1))
        inside = numbers < number[:, None]
        units = reached[place, :, :-1]
        inside &= ~(taken[units] & inside).any(axis=1)[:, None]
        taken[units[inside]] = True
        begins[row, here[place]] |= inside[:, 0]
        left -= (sized[place] * inside).max(axis=1)
    selected = candidates & taken.reshape(rows, length + 1)[row[:, None], unit]
    return Selected(selected, np.maximum.accumulate(np.where(begins, np.arange(length), 0), axis=1))


def _unit_starts(size: Ints, number: int) -> Ints:
    """Return where each unit and the next ``number`` units begin, int64 [n, L, number + 1].

    Beyond the last unit of the text, the value is the position after the text. ``size`` is from ``units.sizes``.
    """
    rows, length = size.shape
    # From a position where no unit begins, the next position is the same position.
    after = np.append(np.arange(length) + size, np.full((rows, 1), length), axis=1)
    starts = [np.broadcast_to(np.arange(length), (rows, length))]
    for _ in range(number):
        starts.append(np.take_along_axis(after, starts[-1], axis=1))
    return np.stack(starts, axis=2)
