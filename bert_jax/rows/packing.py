"""Several sentence pairs in one row: which, from their lengths alone.

Longest-pack-first histogram packing (Krell et al. 2021, "Efficient sequence packing without cross-contamination").
Pairs of one length are alike, so rows are composed of lengths, from the longest down, each into the open rows with the
least room that it fits; then the pairs of each length are dealt to the compositions. What grows with the number of
pairs is vectorised.
"""

from __future__ import annotations

import bisect
import collections
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from bert_jax.rows import plan, random
from bert_jax.rows.plan import SPECIAL_TOKENS_PER_ROW, Ints, Pairs

VERSION = 1  # a change of which pairs go together changes this
WINDOW = 1 << 19  # pairs that are packed together: enough of every length, few enough for bounded memory


_PILOT_SENTENCES = 1 << 18
_TARGETS = 1 << 12


class Limits(NamedTuple):
    """What a row has room for."""

    max_length: int
    max_pairs: int  # K
    predictions: int  # P
    counts: Ints  # [max_length + 1] masked positions of a pair, by its length


class Composition(NamedTuple):
    """``rows`` rows alike."""

    rows: int
    lengths: tuple[int, ...]  # of their pairs
    predictions: int  # left


def pair_lengths(pairs: Pairs) -> Ints:
    """[n] tokens of each pair, special tokens included."""
    return pairs["a_length"].astype(np.int64) + pairs["b_length"] + SPECIAL_TOKENS_PER_ROW


def short_targets(split: plan.Sentences, key: np.uint64, limits: Limits, short_row_probability: float) -> Ints:
    """Equally likely targets of short chunks, in tokens: [4096], so that short pairs fit beside those at document ends.

    The pairs of a sample of documents are planned without any short target and packed; what room they leave is wanted.
    The short chunks that are not needed for that are spread evenly over all lengths, where they fit beside each other.
    """
    room = limits.max_length - SPECIAL_TOKENS_PER_ROW
    documents, sentences = len(split.document_starts) - 1, len(split.sentence_offsets) - 1
    sample = np.arange(0, documents, -(-sentences // _PILOT_SENTENCES))
    chunks = plan.cut_chunks(split, key, sample, room, 0.0)
    tokens = split.sentence_offsets[chunks.stop] - split.sentence_offsets[chunks.start]
    alone = chunks.stop - chunks.start == 1  # its random second segment fills the row
    tokens = np.where(alone, room, np.minimum(tokens, room))
    wanted = np.zeros(limits.max_length + 1)
    for row in compose(np.bincount(tokens + SPECIAL_TOKENS_PER_ROW, minlength=len(wanted)), limits):
        wanted[limits.max_length - sum(row.lengths)] += row.rows
    wanted = wanted[SPECIAL_TOKENS_PER_ROW + 2 :]  # from the shortest pair, 2 tokens, on
    wanted += max(short_row_probability * len(tokens) - wanted.sum(), 1.0) / len(wanted)
    shares = np.cumsum(wanted) / wanted.sum()
    return 2 + np.searchsorted(shares, (np.arange(_TARGETS) + 0.5) / _TARGETS)


def pack(blocks: Iterable[Pairs], key: np.uint64, limits: Limits) -> Iterator[tuple[str, np.ndarray]]:
    """The parts of a packed plan, in blocks of bounded size.

    ``pairs``: those of an epoch, row after row. ``row_ends``: for each row the index after its last pair.

    Args:
      blocks: the pairs of an epoch, in any division: the result does not depend on it.
      key: decides which of the pairs of one length go where.
    """
    first = 0
    for window in _windows(blocks):
        lengths = pair_lengths(window)
        compositions = compose(np.bincount(lengths, minlength=limits.max_length + 1), limits)
        order = _by_length(lengths, random.fold(key, first + np.arange(len(window))))
        indices, sizes = _deal(compositions, order, lengths, limits.max_length)
        yield "pairs", window[indices]
        yield "row_ends", first + np.cumsum(sizes)
        first += len(window)


def compose(histogram: Ints, limits: Limits) -> list[Composition]:
    """Rows of lengths for ``histogram[l]`` pairs of every length ``l``, each pair in one row."""
    full: list[Composition] = []
    open_rows: dict[int, list[Composition]] = collections.defaultdict(list)  # by the room that is left
    rooms: list[int] = []  # where there are some, ascending

    def put(room: int, composition: Composition) -> None:
        if not room or len(composition.lengths) == limits.max_pairs:
            full.append(composition)
            return
        if room not in rooms:
            bisect.insort(rooms, room)
        open_rows[room].append(composition)

    def join(length: int, left: int, room: int) -> int:
        """Add pairs of ``length`` to the open rows of ``room``; how many of ``left`` remain."""
        rows, waiting = open_rows[room], list[Composition]()
        open_rows[room] = waiting
        for row in rows:
            taken = min(left, row.rows) if row.predictions >= needed else 0
            if taken:
                put(room - length, Composition(taken, (*row.lengths, length), row.predictions - needed))
            if taken < row.rows:
                waiting.append(row._replace(rows=row.rows - taken))
            left -= taken
        return left

    for length in np.flatnonzero(histogram)[::-1].tolist():
        rooms[:] = [room for room in rooms if open_rows[room]]
        left, needed = int(histogram[length]), int(limits.counts[length])
        before = -1
        while left and left != before:  # a row that has taken one may take another
            before = left
            for room in rooms[bisect.bisect_left(rooms, length) :]:
                left = join(length, left, room)
                if not left:
                    break
        most = min(limits.max_length // length, limits.max_pairs, limits.predictions // needed)
        while left:  # rows of their own, with as many in each as fit
            pairs = min(most, left)
            spare = limits.predictions - pairs * needed
            put(limits.max_length - pairs * length, Composition(left // pairs, (length,) * pairs, spare))
            left %= pairs
    return full + [row for room in rooms for row in open_rows[room]]


def _windows(blocks: Iterable[Pairs]) -> Iterator[Pairs]:
    """The same pairs in blocks of ``WINDOW``, the last one shorter."""
    held: list[Pairs] = []
    for block in blocks:
        while len(block):
            part = block[: WINDOW - sum(map(len, held))]
            held.append(part)
            block = block[len(part) :]
            if sum(map(len, held)) == WINDOW:
                yield np.concatenate(held)
                held = []
    if held:
        yield np.concatenate(held)


def _by_length(lengths: Ints, bits: random.Bits) -> Ints:
    """Indices sorted by length, in random order among equals."""
    return np.argsort((bits >> np.uint64(24)) | (lengths.astype(np.uint64) << np.uint64(40)))


def _deal(compositions: list[Composition], order: Ints, lengths: Ints, longest: int) -> tuple[Ints, Ints]:
    """Indices of pairs, row after row, and the number of pairs of each row."""
    starts = np.concatenate([[0], np.cumsum(np.bincount(lengths, minlength=longest + 1))])
    taken: collections.Counter[int] = collections.Counter()
    indices: list[Ints] = []
    for rows, row_lengths, _ in compositions:
        columns = []
        for length in row_lengths:
            begin = starts[length] + taken[length]
            columns.append(order[begin : begin + rows])
            taken[length] += rows
        indices.append(np.stack(columns, axis=1).reshape(-1))
    sizes = [np.full(rows, len(row_lengths), np.int64) for rows, row_lengths, _ in compositions]
    return np.concatenate(indices), np.concatenate(sizes)
