"""64-bit hashes of sentences and documents, and exact counts of equal ones in bounded memory.

A sentence's hash is the sum over its tokens of a random number for (token, place), which numpy computes for whole
arrays. The lowest byte is replaced by the sentence's length (255 for more), so that a hash shows how long its sentence
is; 56 bits and the length are left to tell sentences apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bert_jax.rows import random

Hashes = npt.NDArray[np.uint64]
LENGTH_BITS = np.uint64(0xFF)
SORTED_AT_ONCE = 1 << 22  # hashes: 32 MB, and several times that while they are counted
_READ_AT_ONCE = 1 << 19


def token_table(vocab_size: int, name: str) -> Hashes:
    """Return a random number for every token."""
    return random.fold(random.key("inspection", name), np.arange(vocab_size))


def sequence_hashes(values: Hashes, lengths: np.ndarray) -> Hashes:
    """Return a hash [n] of every run of ``lengths`` [n], all at least 1, in ``values``: equal for equal values in
    order."""
    starts = np.cumsum(lengths) - lengths
    place = np.arange(len(values)) - np.repeat(starts, lengths)
    return np.add.reduceat(random.fold(values, place), starts) if len(starts) else np.zeros(0, np.uint64)


def bag_hashes(values: Hashes, lengths: np.ndarray) -> Hashes:
    """Return ``sequence_hashes`` that do not depend on the order; a value of 0 does not count."""
    starts = np.cumsum(lengths) - lengths
    return np.add.reduceat(values, starts) if len(starts) else np.zeros(0, np.uint64)


def with_length(hashes: Hashes, lengths: np.ndarray) -> Hashes:
    """Return ``hashes`` with the lowest byte replaced by the length, 255 at most."""
    return (hashes & ~LENGTH_BITS) | np.minimum(lengths, 255).astype(np.uint64)


def length_of(hashes: Hashes) -> npt.NDArray[np.int64]:
    """Return the length that ``with_length`` wrote."""
    return (hashes & LENGTH_BITS).astype(np.int64)


class Groups(NamedTuple):
    """Distinct hashes and how often each occurs."""

    hashes: Hashes
    counts: npt.NDArray[np.int64]


def groups(values: Hashes) -> Groups:
    """Return the groups of equal hashes in sorted ``values``."""
    starts = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]])) if len(values) else np.zeros(0, int)
    return Groups(values[starts], np.diff(np.append(starts, len(values))))


def sorted_parts(arrays: Sequence[Hashes], at_once: int = SORTED_AT_ONCE) -> Iterator[list[Hashes]]:
    """Yield ``arrays`` (on disk) sorted, part by part; equal hashes of all arrays are in the same part.

    The arrays are read as many times as needed to hold at most ``at_once`` hashes in memory.
    """
    total, bits = sum(map(len, arrays)), 0
    while total > at_once << bits:
        bits += 1
    for part in range(1 << bits):
        yield [np.sort(_part(array, part, bits)) for array in arrays]


def distinct_parts(array: Hashes, others: Hashes, at_once: int = SORTED_AT_ONCE) -> Iterator[Hashes]:
    """Yield ``array`` sorted, part by part; of equal hashes one stays for each distinct value at their places in
    ``others``."""
    bits = 0
    while 4 * len(array) > at_once << bits:  # both arrays, their order, and a copy in that order
        bits += 1
    for part in range(1 << bits):
        kept, beside = _part(array, part, bits), _part(array, part, bits, others)
        order = np.lexsort((beside, kept))
        kept, beside = kept[order], beside[order]
        new = np.ones(len(kept), bool)
        new[1:] = (kept[1:] != kept[:-1]) | (beside[1:] != beside[:-1])
        yield kept[new]


def _part(array: Hashes, part: int, bits: int, taken: Hashes | None = None) -> Hashes:
    """Return the values of ``array`` whose first ``bits`` are ``part``, or of ``taken`` at their places."""
    taken = array if taken is None else taken
    if bits == 0:
        return np.array(taken)
    shift, found = np.uint64(64 - bits), []
    for start in range(0, len(array), _READ_AT_ONCE):
        piece = array[start : start + _READ_AT_ONCE]
        found.append(taken[start : start + _READ_AT_ONCE][(piece >> shift) == part])
    return np.concatenate([np.zeros(0, np.uint64), *found])


def first_places(array: Hashes, wanted: Hashes) -> dict[int, int]:
    """Return the index of the first occurrence in ``array`` (on disk) of each of the few ``wanted``."""
    places: dict[int, int] = {}
    for start in range(0, len(array), _READ_AT_ONCE):
        piece = np.asarray(array[start : start + _READ_AT_ONCE])
        for index in np.flatnonzero(np.isin(piece, wanted)).tolist():
            places.setdefault(int(piece[index]), start + index)
        if len(places) == len(wanted):
            break
    return places
