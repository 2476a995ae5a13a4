"""Selects spans of whole units, of random length (Joshi et al. 2020, "SpanBERT", section 3.1).

As in facebookresearch/SpanBERT, fairseq/data/masking.py, PairWithSpanMaskingScheme: draw a length in units and a
position; reject the draw if the position is already selected; otherwise select units, beginning with the unit of that
position, until the length, the end of the text or the count is reached. The last span is cut at the count, even inside
a unit. A draw depends only on its number. So all draws of all rows are made at once, and then accepted or rejected in
order.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from bert_jax.configuration import check_fields
from bert_jax.rows import random
from bert_jax.rows.interfaces import Bools, Ints, Selected
from bert_jax.rows.units import runs

_MOST_DRAWS = 64  # draws per row at a time


@dataclasses.dataclass(frozen=True)
class Config:
    """The options. The share of length n is p (1 - p)^(n - 1), normalised over lengths 1 to ``longest``.

    The mean of the default options is 3.797 units.

    Attributes:
      p: the parameter of the geometric distribution.
      longest: the largest number of units of a span.
    """

    p: float = 0.2
    longest: int = 10

    def __post_init__(self) -> None:
        where = "config.objective.masking.options"
        check_fields(self, where, "more than 0 and below 1 is needed", "p", sound=lambda p: 0 < p < 1)
        check_fields(self, where, "1 to 1000 is allowed", "longest", sound=lambda n: 1 <= n <= 1000)

    def lengths(self, bits: random.Bits) -> Ints:
        """Return a random length, in units, for each element of ``bits``, which are 64 random bits each."""
        shares = np.cumsum(self.p * (1 - self.p) ** np.arange(self.longest))
        return 1 + np.searchsorted(shares[:-1] / shares[-1], random.uniform(bits), side="right")


def select(candidates: Bools, starts: Bools, counts: np.ndarray, keys: random.Bits, options: Config) -> Selected:
    """Select exactly ``counts`` positions in each row.

    In the result, a span is a run of selected positions: spans that touch or overlap become one.
    """
    selected = np.zeros_like(candidates)
    text = _Text(candidates, starts)
    left, drawn = counts.astype(np.int64), 0
    while len(rows := np.flatnonzero(left > 0)):
        draws = drawn + np.arange(min(_MOST_DRAWS, 4 + int(left.max()) // 2))
        anchors, begins, ends = text.spans(rows, keys[rows, None], draws, options)
        accepted = _accept(anchors, begins, ends, np.take_along_axis(selected[rows], anchors, axis=1))
        taken = _until(left[rows], begins, ends, accepted, selected[rows])
        selected[rows] |= taken
        left[rows] -= taken.sum(axis=1)
        drawn += len(draws)
    return Selected(selected, runs(selected))


class _Text:
    """The candidates and units of all rows; positions are counted through all rows, joined one after another."""

    def __init__(self, candidates: Bools, starts: Bools):
        self.length = candidates.shape[1]
        self.candidates, self.units = np.flatnonzero(candidates), np.flatnonzero(starts)
        self.number = candidates.sum(axis=1)  # [n] candidates of a row
        self.first = np.cumsum(self.number) - self.number  # [n] the index, among all candidates, of a row's first
        unit_of = np.searchsorted(self.units, self.candidates, side="right") - 1
        self.unit_of = unit_of  # the index of the unit of each candidate
        after = np.append(candidates[:, 1:], np.zeros_like(candidates[:, :1]), axis=1)
        stops = candidates & ~after  # whether a candidate is the last before a special token, padding or the row's end
        self.stops = np.flatnonzero(stops) + 1

    def spans(self, rows: Ints, keys: random.Bits, draws: Ints, options: Config) -> tuple[Ints, Ints, Ints]:
        """Return anchors, begins and ends [n, T] of the spans of draws [T].

        An anchor is the position drawn. A span is cut only at the end of the text.
        """
        pick = random.integers(random.fold(keys, 2 * draws), self.number[rows, None])
        candidate = self.first[rows, None] + pick
        anchor, unit = self.candidates[candidate], self.unit_of[candidate]
        following = unit + options.lengths(random.fold(keys, 2 * draws + 1))
        begin = self.units[unit]
        end = np.append(self.units, np.iinfo(np.int64).max)[np.minimum(following, len(self.units))]
        end = np.minimum(end, self.stops[np.searchsorted(self.stops, anchor, side="right")])
        offset = rows[:, None] * self.length
        return anchor - offset, begin - offset, end - offset


def _accept(anchors: Ints, begins: Ints, ends: Ints, selected: Bools) -> Bools:
    """Return whether each draw [n, T] is accepted.

    ``selected`` [n, T] says for each draw whether its anchor was already selected before these draws.
    """
    inside = (begins[:, None] <= anchors[:, :, None]) & (anchors[:, :, None] < ends[:, None])  # [n, T, T]
    accepted = ~selected
    for draw in range(1, anchors.shape[1]):
        accepted[:, draw] &= ~(inside[:, draw, :draw] & accepted[:, :draw]).any(axis=1)
    return accepted


def _until(left: Ints, begins: Ints, ends: Ints, accepted: Bools, selected: Bools) -> Bools:
    """Return the positions [n, L] that accepted spans, in order, add to ``selected``, at most ``left`` [n] in a row."""
    rows, draws = begins.shape
    length = selected.shape[1]
    sizes = np.where(accepted, ends - begins, 0)[:, ::-1].ravel()  # the last draw first, since later writes win
    first = (begins + np.arange(rows)[:, None] * length)[:, ::-1].ravel()
    positions = np.arange(sizes.sum()) + np.repeat(first - (np.cumsum(sizes) - sizes), sizes)
    draw_of = np.full(rows * length, draws)
    draw_of[positions] = np.repeat(np.tile(np.arange(draws)[::-1], rows), sizes)
    draw_of = np.where(selected, draws, draw_of.reshape(rows, length))
    added = np.bincount((draw_of + np.arange(rows)[:, None] * (draws + 1)).ravel(), minlength=rows * (draws + 1))
    sums = np.cumsum(added.reshape(rows, draws + 1)[:, :draws], axis=1)
    last = (sums < left[:, None]).sum(axis=1)[:, None]  # [n, 1] the draw that reaches the count, or T if none
    before = np.where(last > 0, np.take_along_axis(sums, np.maximum(last - 1, 0), axis=1), 0)
    cut = draw_of == last
    fits = np.cumsum(cut, axis=1) <= left[:, None] - before
    return (draw_of < last) | (cut & fits & (last < draws))
