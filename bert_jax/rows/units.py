"""Finds the units (groups of positions masked together): pieces, words, or the units in a column of the corpus."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from bert_jax.corpora.columns import CONTINUES
from bert_jax.rows.interfaces import Bools, Ids, TokenFacts

PIECE, WORD = "piece", "word"  # units that need no column


def columns(names: Iterable[str]) -> tuple[str, ...]:
    """Return the ``names`` of units that are columns of the corpus."""
    return tuple(name for name in names if name not in (PIECE, WORD))


def starts(unit: str, ids: Ids, candidates: Bools, facts: TokenFacts, column: Ids | None) -> Bools:
    """Return [n, L] whether a unit begins at a candidate.

    Args:
      unit: "piece", "word" (``TokenFacts`` says which pieces continue a word, and after which pieces none does), or the
        name of a column of the corpus.
      column: the values [n, L] of that column.
    """
    if unit == PIECE:
        return candidates
    before = np.zeros_like(candidates)
    before[:, 1:] = candidates[:, :-1]  # a piece after a special token always begins a unit
    if unit == WORD:
        none = np.zeros(facts.vocab_size, np.bool_)
        goes_on = none if facts.is_continuation is None else facts.is_continuation
        ends = none if facts.ends_word is None else facts.ends_word
        continues = goes_on[ids]
        before[:, 1:] &= ~ends[ids[:, :-1]]
    else:
        assert column is not None
        continues = column == CONTINUES
    return candidates & (~continues | ~before)


def first_positions(candidates: Bools, starts: Bools) -> npt.NDArray[np.int64]:
    """Return [n, L]: for a candidate, the first position of its unit; for any other position, the position itself."""
    positions = np.arange(candidates.shape[1])
    first = np.maximum.accumulate(np.where(starts, positions, 0), axis=1)
    return np.where(candidates, first, positions)


def sizes(first: npt.NDArray[np.int64], starts: Bools) -> npt.NDArray[np.int64]:
    """Return [n, L]: where a unit begins, its number of positions; elsewhere 0.

    ``first`` comes from ``first_positions``.
    """
    rows, length = first.shape
    flat = np.bincount((first + np.arange(rows)[:, None] * length).ravel(), minlength=rows * length)
    return np.where(starts, flat.reshape(rows, length), 0)


def runs(selected: Bools) -> npt.NDArray[np.int64]:
    """Return [n, L]: for each selected position, the first position of its run of selected positions.

    Elsewhere the value has no meaning.
    """
    before = np.zeros_like(selected)
    before[:, 1:] = selected[:, :-1]
    return np.maximum.accumulate(np.where(selected & ~before, np.arange(selected.shape[1]), 0), axis=1)
