"""Packed rows: decides which sequences share a row, from their lengths alone, and joins their features.

``pack`` is longest-pack-first histogram packing (Krell et al. 2021, "Efficient sequence packing without
cross-contamination"). Sequences of one length are interchangeable, so a row is first composed of lengths only,
beginning with the longest lengths. Sequences of each length go into the unfinished rows with the tightest fit: the
rows with the least free space that is still large enough. Then the sequences of each length are distributed to the
compositions. All work that grows with the number of sequences is vectorised.
"""

from __future__ import annotations

import bisect
import collections
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from bert_jax.rows import random
from bert_jax.rows.interfaces import Field, Ints, Limits, Records

_WEIGHTS = "masked_weights"  # this feature is above 0 where a sequence has a prediction
VERSION = 1  # raise it whenever the packing changes
WINDOW = 1 << 19  # number of sequences packed together: enough of every length, few enough for bounded memory


class _Composition(NamedTuple):
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


def compose(histogram: Ints, limits: Limits) -> list[_Composition]:
    """Return compositions of rows that together hold ``histogram[l]`` sequences of every length ``l``."""
    full: list[_Composition] = []
    open_rows: dict[int, list[_Composition]] = collections.defaultdict(list)  # unfinished rows, by the capacity left
    capacities: list[int] = []  # the keys of ``open_rows`` that have rows, ascending

    def put(capacity: int, composition: _Composition) -> None:
        if not capacity or len(composition.lengths) == limits.max_sequences:
            full.append(composition)
            return
        if capacity not in capacities:
            bisect.insort(capacities, capacity)
        open_rows[capacity].append(composition)

    def join(length: int, left: int, capacity: int) -> int:
        """Add sequences of ``length`` to the open rows of ``capacity``; return how many of ``left`` remain."""
        rows, waiting = open_rows[capacity], list[_Composition]()
        open_rows[capacity] = waiting
        for row in rows:
            taken = min(left, row.rows) if row.predictions >= needed else 0
            if taken:
                put(capacity - length, _Composition(taken, (*row.lengths, length), row.predictions - needed))
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
            put(limits.max_length - number * length, _Composition(left // number, (length,) * number, spare))
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


def _deal(compositions: list[_Composition], order: Ints, lengths: Ints, longest: int) -> tuple[Ints, Ints]:
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


# ---- Features -------------------------------------------------------------------------------------------------------


class Flat(NamedTuple):
    """The features of m sequences, one sequence after another, without padding; T tokens and M predictions in all."""

    lengths: Ints  # [m]
    positions: dict[str, np.ndarray]  # [T] features of the axis "position"
    sequence_of: Ints  # [M] the index of the sequence that each prediction belongs to, ascending
    predictions: dict[str, np.ndarray]  # [M] features of the axis "prediction"
    sequences: dict[str, np.ndarray]  # [m, ...] features of the axis "sequence"


def flatten(
    groups: Iterable[tuple[Ints, dict[str, np.ndarray]]],
    lengths: Ints,
    sequences: dict[str, np.ndarray],
    fields: Mapping[str, Field],
) -> Flat:
    """Return the sequences of several groups, merged into one order, without padding.

    Args:
      groups: for each group, the indices [g] of its sequences and their features [g, width]; every group has its own
        width.
      lengths: [m] the lengths of all sequences.
      sequences: the features [m] of the axis "sequence", of all sequences.
      fields: all features except ``attention_mask``.
    """
    tokens = int(lengths.sum())
    inside = {name: np.empty(tokens, field.dtype) for name, field in fields.items() if field.axis == "position"}
    arrays_of: dict[str, list[np.ndarray]] = {name: [] for name, field in fields.items() if field.axis == "prediction"}
    sequence_of: list[Ints] = []
    group_of = np.empty(len(lengths), np.int64)
    for number, (indices, features) in enumerate(groups):
        group_of[:] = -1
        group_of[indices] = number
        here, real = np.repeat(group_of == number, lengths), features["attention_mask"].astype(np.bool_)
        for name, values in inside.items():
            values[here] = features[name][real]
        slots = np.flatnonzero(features[_WEIGHTS])  # several times faster than nonzero
        sequence_of.append(indices[slots // features[_WEIGHTS].shape[1]])
        for name, arrays in arrays_of.items():
            arrays.append(features[name].reshape(-1)[slots])
    owners = np.concatenate(sequence_of)
    order = np.argsort(owners, kind="stable")
    predictions = {name: np.concatenate(arrays)[order] for name, arrays in arrays_of.items()}
    return Flat(lengths, inside, owners[order], predictions, sequences)


def join(
    flat: Flat, sizes: Ints, shape: tuple[int, int, int], fields: Mapping[str, Field], pad: int
) -> dict[str, np.ndarray]:
    """Return rows that hold several sequences each, one after another.

    Args:
      flat: all sequences, in the order of the rows.
      sizes: [n] the number of sequences of each row, at least one; they add up to the number of all sequences.
      shape: (L, P, K). The sequences of a row must fit into L positions; predictions after the P-th
        of a row are left out.
      pad: the token id of padding; all other features are 0 on padding.

    Returns:
      The features of ``fields``, shaped [n, L], [n, P] or [n, K, ...] by their axis, with positions counted from the
      start of the row; and ``attention_mask``, ``position_ids`` (from 0 in every sequence), ``sequence_ids`` (sequences
      from 1), each [n, L].
    """
    max_length, most, max_sequences = shape
    count, lengths = len(sizes), flat.lengths
    row = np.repeat(np.arange(count), sizes)  # [m]
    place = np.arange(len(row)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # [m] index of a sequence in its row
    begin = np.cumsum(lengths) - lengths  # [m] where a sequence begins in the flat order
    totals = np.bincount(row, lengths, count).astype(np.int64)  # [n] number of tokens of a row
    offset = begin - (np.cumsum(totals) - totals)[row]  # [m] where a sequence begins in its row
    real = np.arange(max_length) < totals[:, None]

    def spread(values: np.ndarray, dtype: str = "int32", empty: int = 0) -> np.ndarray:
        rows = np.full((count, max_length), empty, dtype)
        rows[real] = values
        return rows

    features = {
        "attention_mask": real.astype(np.int32),
        "position_ids": spread(np.arange(int(lengths.sum())) - np.repeat(begin, lengths)),
        "sequence_ids": spread(np.repeat(place + 1, lengths)),
    }
    predictions, row_of, shift = flat.predictions, row[flat.sequence_of], offset[flat.sequence_of]
    slot = np.arange(len(row_of)) - np.searchsorted(row_of, np.arange(count))[row_of]
    if not (held := slot < most).all():  # only if counts are random, and then in about one row of 10,000
        row_of, shift, slot = row_of[held], shift[held], slot[held]
        predictions = {name: values[held] for name, values in predictions.items()}
    for name, field in fields.items():
        if field.axis == "position":
            shifts = np.repeat(offset, lengths) if field.is_place else 0
            features[name] = spread(flat.positions[name] + shifts, field.dtype, pad if name == "input_ids" else 0)
        elif field.axis == "prediction":
            features[name] = np.zeros((count, most), field.dtype)
            features[name][row_of, slot] = predictions[name] + (shift if field.is_place else 0)
        else:
            values = flat.sequences[name] + (offset if field.is_place else 0)
            features[name] = np.zeros((count, max_sequences, *values.shape[1:]), field.dtype)
            features[name][row, place] = values
    return features
