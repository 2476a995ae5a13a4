"""Cuts passages that do not fit into a row into overlapping windows, and finds the best answers in their logits.

The windows are those of run_squad.py in google-research/bert.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from bert_jax.text.tokenizer import Tokenizer

CELLS = 1 << 22  # most span scores in memory at once


class Passage(NamedTuple):
    """The T tokens of a text. Token t covers the characters [starts[t], ends[t]) of the text."""

    ids: np.ndarray  # [T] int32
    starts: np.ndarray  # [T] int32
    ends: np.ndarray  # [T] int32

    def tokens(self, start: int, end: int) -> tuple[int, int] | None:
        """Return the first and the last token that overlap the characters [start, end); None if no token does."""
        touched = np.flatnonzero((self.starts < end) & (self.ends > start))
        return (int(touched[0]), int(touched[-1])) if len(touched) else None


class Windows(NamedTuple):
    """W windows over the tokens of one passage, in reading order.

    A token's best window is the one where the smaller of its left and right context is largest. An answer may begin
    only in the best window of its first token. Each window is the best window of its tokens [best_start, best_end).
    """

    starts: np.ndarray  # [W] number of the first token
    sizes: np.ndarray  # [W] number of tokens
    best_starts: np.ndarray  # [W]
    best_ends: np.ndarray  # [W]


def read_passages(tokenizer: Tokenizer, texts: Iterable[str]) -> dict[str, Passage]:
    """Return a dict: text -> its passage. Equal texts are tokenized once."""
    return {text: read_passage(tokenizer, text) for text in dict.fromkeys(texts)}


def read_passage(tokenizer: Tokenizer, text: str) -> Passage:
    """Return the passage of a text.

    A tokenizer that strips accents assigns combining marks to no token. Here the characters of a token include such
    marks directly after it; otherwise an answer that ends in a mark would lose the mark.
    """
    encoded = tokenizer.encode(text)
    spans = np.array(encoded.offsets[1:-1], np.int32).reshape(-1, 2)
    if not text.isascii():
        following = [*spans[1:, 0].tolist(), len(text)]
        spans[:, 1] = [_over_marks(text, *bounds) for bounds in zip(spans[:, 1].tolist(), following, strict=False)]
    return Passage(np.array(encoded.input_ids[1:-1], np.int32), spans[:, 0].copy(), spans[:, 1].copy())


def _over_marks(text: str, end: int, stop: int) -> int:
    while end < stop and unicodedata.category(text[end]).startswith("M"):
        end += 1
    return end


@functools.lru_cache(maxsize=1 << 16)
def cut(num_tokens: int, capacity: int, stride: int) -> Windows:
    """Return windows of at most ``capacity`` tokens that start every ``stride`` tokens until the passage is covered.

    An empty passage has one empty window. The best window of a token is chosen as in run_squad.py: the context of the
    token in a window is raised by a hundredth of the window's size, and on a tie the first window is taken.
    """
    step = min(stride, capacity)
    num_windows = 1 + max(0, -(-(num_tokens - capacity) // step))
    starts = np.arange(num_windows) * step
    sizes = np.minimum(capacity, num_tokens - starts)
    highest = np.full(num_tokens, -1.0)
    owner = np.zeros(num_tokens, np.int64)
    for window, (start, size) in enumerate(zip(starts.tolist(), sizes.tolist(), strict=True)):
        inside = np.arange(size)
        context = np.minimum(inside, inside[::-1]) + 0.01 * size
        here = slice(start, start + size)
        better = context > highest[here]
        highest[here][better] = context[better]
        owner[here][better] = window
    # ``owner`` never decreases: from token to token, a window gains context relative to the window before it.
    numbers = np.arange(num_windows)
    best = np.searchsorted(owner, numbers), np.searchsorted(owner, numbers, side="right")
    result = Windows(starts, sizes, *best)
    for array in result:
        array.flags.writeable = False
    return result


# ---- Answers ---------------------------------------------------------------------------------------------------------


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
    size, most = min(size, length), max(1, CELLS // (length * min(size, length)))
    pieces = [
        _best_pairs(start_logits[rows], end_logits[rows], Bounds(*(bound[rows] for bound in bounds)), size, n_best)
        for rows in (slice(i, i + most) for i in range(0, len(start_logits), most))
    ]
    return Pairs(*(np.concatenate(arrays) for arrays in zip(*pieces, strict=True)))


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


def merge(context: str, passage: Passage, pairs: Pairs, shifts: np.ndarray, n_best: int) -> list[Answer]:
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
