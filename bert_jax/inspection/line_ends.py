"""Finds hard-wrapped text (lines of about one width that end within sentences), and text without spaces."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bert_jax.corpora.store import CorpusSplit
from bert_jax.inspection.check import Check, percent, ratio
from bert_jax.inspection.fixes import Fixes
from bert_jax.inspection.pieces import Pieces

RUNS, RUN_SENTENCES = 64, 512  # runs of sentences from all over the split: enough to tell such text
_FEW_MARKS = 0.35  # in prose, few lines but titles end without a final mark
_WRAPPED = (6, 60)  # tokens of such a line, on average: from a narrow column to a wide window
_WIDTH_SPREAD = 0.65  # standard deviation over mean of the tokens of such lines: lists and verse vary more
_SENTENCE_ENDS = 0.1  # marks that end sentences, per line: wrapped prose has 0.2 and more, titles have 0.02
_LINES_A_DOCUMENT = 2  # with fewer, a line is a document, such as a title, and nothing goes on below it
LONG_WORD = 16  # pieces of a word; a longer one is a name of many bytes, or text without spaces


def in_long_words(split: CorpusSplit, is_continuation: np.ndarray) -> float:
    """Return the share of the pieces that are in words of more than ``LONG_WORD`` pieces.

    Args:
      is_continuation: bool [V], see ``Tokenizer``.
    """
    long = total = 0
    for tokens, _ in _runs(split):
        sizes = np.diff(np.flatnonzero(~is_continuation[tokens]), prepend=0, append=len(tokens))
        long, total = long + int(sizes[sizes > LONG_WORD].sum()), total + len(tokens)
    return ratio(long, total)


def line_ends(split: CorpusSplit, pieces: Pieces, fixes: Fixes) -> Check:
    """Check whether sentences end with a final mark; if few do, the sentences are lines broken at a width."""
    lines = unmarked = ends = 0
    widths: list[np.ndarray] = []
    for tokens, lengths in _runs(split):
        marked = pieces.final[tokens[np.cumsum(lengths) - 1]]
        lines, unmarked = lines + len(lengths), unmarked + int((~marked).sum())
        ends += int(pieces.sentence_end[tokens].sum())
        widths.append(lengths[~marked])
    width = np.concatenate(widths) if widths else np.zeros(0)
    share, mean = ratio(unmarked, lines), float(width.mean()) if len(width) else 0.0
    spread = ratio(float(width.std()), mean) if len(width) else 0.0
    fix = fixes.joins_lines()
    prose = ratio(ends, lines) > _SENTENCE_ENDS and split.num_sentences >= _LINES_A_DOCUMENT * split.num_documents
    wrapped = prose and share > _FEW_MARKS and _WRAPPED[0] <= mean <= _WRAPPED[1] and spread < _WIDTH_SPREAD
    figure = f"{percent(share)} of lines have no final mark" + (f", mean {mean:.1f} tokens" if unmarked else "")
    return Check(
        "line_ends",
        "warn" if wrapped and fix else "ok",
        figure + ("; the text looks hard-wrapped: its lines break in the middle of sentences" if wrapped else ""),
        fix if wrapped else "",
        {"lines": lines, "unmarked_share": share, "unmarked_mean_tokens": mean, "unmarked_spread": spread},
    )


def _runs(split: CorpusSplit) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (tokens, sentence lengths) of evenly spaced runs of sentences, without empty sentences."""
    stride = max(RUN_SENTENCES, split.num_sentences // RUNS)
    for first in range(0, split.num_sentences, stride):
        offsets = np.asarray(split.sentence_offsets[first : min(first + RUN_SENTENCES, split.num_sentences) + 1])
        lengths = np.diff(offsets)
        yield split.read(offsets[:1], offsets[-1:] - offsets[:1]), lengths[lengths > 0]
