"""Decides which sequences share a row, from their lengths alone.

It is longest-pack-first histogram packing (Krell et al. 2021, "Efficient sequence packing without
cross-contamination"). Sequences of one length are interchangeable, so a row is first composed of lengths only,
beginning with the longest lengths. Sequences of each length go into the unfinished rows with the tightest fit: those
with the least free space that is still large enough. Then the sequences of each length are distributed to the
compositions. All work that grows with the number of sequences is vectorised.
"""

from __future__ import annotations

import bisect
import collections
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from bert_jax.rows import random
from bert_jax.rows.features import Ints, Limits, Records

VERSION = 1  # raise it whenever the packing changes
WINDOW = 1 << 19  # number of sequences packed together: enough of every length, few enough for bounded memory


class Composition(NamedTuple):
    """The lengths of the sequences of a row, and how many rows have exactly these lengths."""

    rows: int
    lengths: tuple[int, ...]
    predictions: int  # how many more predictions a row has space for


def pack(
    blocks: Iterable[Records], lengths_of: Callable[[Records], Ints], key: np.uint64, limits: Limits
) -> Iterator[tuple[str, np.ndarray]]:
    """Pack sequences into rows, and yield the arrays of the plan as (name, piece of the array) of bounded size.

    There are two arrays: ``sequences`` has the sequences of an epoch, row after row; ``row_ends`` has the index after
    each row's last sequence.

    Args:
      blocks: the sequences of an epoch; how they are divided into blocks does not change the result.
      lengths_of: returns the number of tokens of sequences.
      key: the random key that decides which of several sequences of equal length goes to which row.
    """
    first = 0
    for window in _windows(blocks):
        lengths = lengths_of(window)
        compositions = compose(np.bincount(lengths, minlength=limits.max_length + 1), limits)
        order = _by_length(lengths, random.fold(key, first + np.arange(len(window))))
        indices, sizes = _deal(compositions, order, lengths, limits.max_length)
        yield "sequences", window[indices]
        yield "row_ends", first + np.cumsum(sizes)
        first += len(window)


def compose(histogram: Ints, limits: Limits) -> list[Composition]:
    """Return compositions of rows that together hold ``histogram[l]`` sequences of every length ``l``."""
    full: list[Composition] = []
    open_rows: dict[int, list[Composition]] = collections.defaultdict(list)  # unfinished rows, by the capacity left
    capacities: list[int] = []  # the keys of ``open_rows`` that have rows, ascending

    def put(capacity: int, composition: Composition) -> None:
        if not capacity or len(composition.lengths) == limits.max_sequences:
            full.append(composition)
            return
        if capacity not in capacities:
            bisect.insort(capacities, capacity)
        open_rows[capacity].append(composition)

    def join(length: int, left: int, capacity: int) -> int:
        """Add sequences of ``length`` to the open rows of ``capacity``; return how many of ``left`` remain."""
        rows, waiting = open_rows[capacity], list[Composition]()
        open_rows[capacity] = waiting
        for row in rows:
            taken = min(left, row.rows) if row.predictions >= needed else 0
            if taken:
                put(capacity - length, Composition(taken, (*row.lengths, length), row.predictions - needed))
            if taken < row.rows:
                waiting.append(row._replace(rows=row.rows - taken))
            left -= taken
        return left

    for length in np.flatnonzero(histogram)[::-1].tolist():
        capacities[:] = [capacity for capacity in capacities if open_rows[capacity]]
        left, needed = int(histogram[length]), int(limits.counts[length])
        before = -1
        while left and left != before:  # a row that took one sequence may take another
            before = left
            for capacity in capacities[bisect.bisect_left(capacities, length) :]:
                left = join(length, left, capacity)
                if not left:
                    break
        most = min(limits.max_length // length, limits.max_sequences, limits.predictions // needed)
        while left:  # new rows, with as many in each as fit
            number = min(most, left)
            spare = limits.predictions - number * needed
            put(limits.max_length - number * length, Composition(left // number, (length,) * number, spare))
            left %= number
    return full + [row for capacity in capacities for row in open_rows[capacity]]


def _windows(blocks: Iterable[Records]) -> Iterator[Records]:
    """Yield the same sequences in blocks of ``WINDOW`` sequences; the last block may be shorter."""
    held: list[Records] = []
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
    """Return the indices of sequences sorted by length; sequences of equal length are in random order."""
    return np.argsort((bits >> np.uint64(24)) | (lengths.astype(np.uint64) << np.uint64(40)))


def _deal(compositions: list[Composition], order: Ints, lengths: Ints, longest: int) -> tuple[Ints, Ints]:
    """Return the indices of sequences, row after row, and the number of sequences of each row."""
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
