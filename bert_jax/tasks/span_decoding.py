"""Finds answers from the start and end logits of tokens: the best spans of each window, merged for each question."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from bert_jax.tasks.windows import Passage

CELLS = 1 << 22  # most span scores in memory at once


class Bounds(NamedTuple):
    """Where answers may lie in the rows of W windows: an answer begins in [first, last_first) and ends before ``stop``.

    All fields hold positions in the row, [W].
    """

    first: np.ndarray
    last_first: np.ndarray
    stop: np.ndarray


class Pairs(NamedTuple):
    """The K best spans of each window, best first; all fields are [W, K]. A missing span has the score -inf."""

    scores: np.ndarray  # float64
    starts: np.ndarray  # positions in the row
    ends: np.ndarray  # positions in the row, inclusive


class Answer(NamedTuple):
    """An answer: characters [start, end) of the context."""

    text: str
    score: float  # the start logit of its first token + the end logit of its last token
    start: int
    end: int


def best_pairs(start_logits: np.ndarray, end_logits: np.ndarray, bounds: Bounds, size: int, n_best: int) -> Pairs:
    """Return the ``n_best`` best spans of each window that have at most ``size`` tokens.

    This search is exact. run_squad.py looks only at the 20 highest starts and the 20 highest ends, some of which may
    lie outside the passage, so it may miss the best span or find none.

    Args:
      start_logits, end_logits: [W, L].
    """
    length = start_logits.shape[1]
    size, rows = min(size, length), max(1, CELLS // (length * min(size, length)))
    parts = [
        _best_pairs(start_logits[i : i + rows], end_logits[i : i + rows], Bounds(*(b[i : i + rows] for b in bounds)),
                    size, n_best)
        for i in range(0, len(start_logits), rows)
    ]  # fmt: skip
    return Pairs(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def _best_pairs(starts: np.ndarray, ends: np.ndarray, bounds: Bounds, size: int, n_best: int) -> Pairs:
    places = np.arange(starts.shape[1])
    may_start = (places >= bounds.first[:, None]) & (places < bounds.last_first[:, None])
    starts = np.where(may_start, starts.astype(np.float64), -np.inf)
    ends = np.where(places < bounds.stop[:, None], ends.astype(np.float64), -np.inf)
    padded = np.pad(ends, ((0, 0), (0, size - 1)), constant_values=-np.inf)
    following = sliding_window_view(padded, size, axis=1)  # [W, L, size]: end logits from each start on
    # The n best spans begin at the n starts whose best spans score highest.
    highest = starts + following.max(axis=-1)
    rows = np.arange(len(starts))[:, None]
    chosen = np.argsort(-highest, axis=1, kind="stable")[:, :n_best]  # [W, n]
    scores = starts[rows, chosen][..., None] + following[rows, chosen]  # [W, n, size]
    scores = scores.reshape(len(scores), -1)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :n_best]
    first = chosen[rows, order // size]
    return Pairs(scores[rows, order], first, first + order % size)


def merged(context: str, passage: Passage, pairs: Pairs, shifts: np.ndarray, n_best: int) -> list[Answer]:
    """Return the best answers of one question, best first. Of answers with the same text, only the best is kept.

    Args:
      pairs: the best spans of the question's windows.
      shifts: [W] the number to add to a position in the row to get the index of the token in the passage.
    """
    scores = pairs.scores.reshape(-1)
    first, last = ((places + shifts[:, None]).reshape(-1) for places in (pairs.starts, pairs.ends))
    found: dict[str, Answer] = {}
    for i in np.argsort(-scores, kind="stable").tolist():
        if scores[i] == -np.inf or len(found) == n_best:
            break
        start, end = int(passage.starts[first[i]]), int(passage.ends[last[i]])
        text = context[start:end]
        if text.strip() and text not in found:
            found[text] = Answer(text, float(scores[i]), start, end)
    return list(found.values())
