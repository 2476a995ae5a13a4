"""Cuts passages that do not fit into a row into overlapping windows, and finds the best answers in their logits.

The windows are the same as in run_squad.py of google-research/bert.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from bert_jax.text.encoded import places_of_text
from bert_jax.text.tokenizer import Tokenizer


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


def read_passage(tokenizer: Tokenizer, text: str) -> Passage:
    """Return the passage of a text.

    A tokenizer that strips accents assigns combining marks to no token. Here the characters of a token include such
    marks directly after it; otherwise an answer that ends in a mark would lose the mark.
    """
    encoded = tokenizer.encode(text)
    inner = places_of_text(encoded, tokenizer.around)
    spans = np.array(encoded.offsets[inner], np.int32).reshape(-1, 2)
    if not text.isascii():
        following = [*spans[1:, 0].tolist(), len(text)]
        spans[:, 1] = [_over_marks(text, *bounds) for bounds in zip(spans[:, 1].tolist(), following, strict=False)]
    return Passage(np.array(encoded.input_ids[inner], np.int32), spans[:, 0].copy(), spans[:, 1].copy())


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
    return Windows(starts, sizes, np.searchsorted(owner, numbers), np.searchsorted(owner, numbers, side="right"))


# ---- Answers ---------------------------------------------------------------------------------------------------------


class Answer(NamedTuple):
    """An answer: characters [start, end) of the context."""

    text: str
    score: float  # the start logit of its first token + the end logit of its last token
    start: int
    end: int


def best_spans(starts: np.ndarray, ends: np.ndarray, longest: int, n_best: int) -> list[tuple[float, int, int]]:
    """Return the ``n_best`` best spans of at most ``longest`` tokens, best first, as (score, first token, last token).

    This search is exact. run_squad.py looks only at the 20 highest starts and the 20 highest ends, some of which may
    lie outside the passage, so it may miss the best span or find none. A span whose score is NaN is left out.

    Args:
      starts: [S] the start logits of the tokens with which a span may begin.
      ends: [E], E >= S, the end logits of these tokens and of the tokens after them.
    """
    if not len(starts):
        return []
    longest = min(longest, len(ends))
    padded = np.pad(ends.astype(np.float64), (0, longest - 1), constant_values=-np.inf)
    following = sliding_window_view(padded, longest)[: len(starts)]  # [S, longest]: the end logits from each start on
    # The n best spans begin at the n starts whose best spans score highest.
    chosen = np.argsort(-(starts + following.max(axis=1)), kind="stable")[:n_best]
    scores = (starts[chosen, None] + following[chosen]).reshape(-1)
    order = np.argsort(-scores, kind="stable")[:n_best]
    first, more = chosen[order // longest], order % longest
    found = zip(scores[order].tolist(), first.tolist(), (first + more).tolist(), strict=True)
    return [span for span in found if span[0] > -np.inf]


def merge(context: str, passage: Passage, spans: Iterable[tuple[float, int, int]], n_best: int) -> list[Answer]:
    """Return the best answers of one question, best first. Of answers with the same text, only the best is kept.

    ``spans``: (score, first token, last token) of the best spans of the question's windows, as tokens of the passage.
    """
    found: dict[str, Answer] = {}
    for score, first, last in sorted(spans, key=lambda span: -span[0]):
        if len(found) == n_best:
            break
        start, end = int(passage.starts[first]), int(passage.ends[last])
        text = context[start:end]
        if text.strip() and text not in found:
            found[text] = Answer(text, score, start, end)
    return list(found.values())
