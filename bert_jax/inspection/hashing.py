"""Hashes sentences and documents to 64 bits, and counts equal hashes exactly in bounded memory.

A sentence's hash is the sum over its tokens of a random number for (token, place), which numpy computes for whole
arrays. The lowest byte is replaced by the sentence's length (at most 255), so that a hash shows how long its sentence
is; the other 56 bits and the length tell sentences apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from bert_jax.rows import random

Hashes = npt.NDArray[np.uint64]
_LENGTH_BITS = np.uint64(0xFF)
_SORTED_AT_ONCE = 1 << 22  # number of hashes: they take 32 MB, and several times as much while they are counted
_READ_AT_ONCE = 1 << 19


def token_table(vocab_size: int) -> Hashes:
    """Return a random number for every token id, [vocab_size]."""
    return random.fold(random.key("inspection", "order"), np.arange(vocab_size))


def sequence_hashes(values: Hashes, lengths: np.ndarray) -> Hashes:
    """Return a hash of each of n consecutive runs of ``values``, [n]. Equal runs have equal hashes.

    Args:
      lengths: [n], the number of values in each run, at least 1.
    """
    starts = np.cumsum(lengths) - lengths
    place = np.arange(len(values)) - np.repeat(starts, lengths)
    return np.add.reduceat(random.fold(values, place), starts) if len(starts) else np.zeros(0, np.uint64)


def with_length(hashes: Hashes, lengths: np.ndarray) -> Hashes:
    """Return ``hashes`` with the lowest byte replaced by the length, 255 at most."""
    return (hashes & ~_LENGTH_BITS) | np.minimum(lengths, 255).astype(np.uint64)


def length_of(hashes: Hashes) -> npt.NDArray[np.int64]:
    """Return the length that ``with_length`` put into each hash."""
    return (hashes & _LENGTH_BITS).astype(np.int64)


def sorted_slices(arrays: Sequence[Hashes], at_once: int = _SORTED_AT_ONCE) -> Iterator[list[Hashes]]:
    """Sort the hashes of ``arrays``, which lie on disk, and yield them in slices that fit in memory.

    Each item is a list with one sorted array for each of ``arrays``: its hashes that begin with the current leading
    bits. So equal hashes are always in the same item, whichever array they come from. The arrays are read once for each
    slice, and there are so many slices that about ``at_once`` hashes are in memory at a time.
    """
    total, bits = sum(map(len, arrays)), 0
    while total > at_once << bits:
        bits += 1
    for number in range(1 << bits):
        yield [np.sort(_slice(array, number, bits)) for array in arrays]


def _slice(array: Hashes, number: int, bits: int) -> Hashes:
    """Return the values of ``array`` whose ``bits`` leading bits are ``number``."""
    if bits == 0:
        return np.array(array)
    chosen = []
    for start in range(0, len(array), _READ_AT_ONCE):
        piece = np.asarray(array[start : start + _READ_AT_ONCE])
        chosen.append(piece[(piece >> np.uint64(64 - bits)) == number])
    return np.concatenate([np.zeros(0, np.uint64), *chosen])


def first_places(array: Hashes, wanted: Hashes) -> dict[int, int]:
    """Return hash -> index of its first occurrence in ``array`` (on disk), for each of the few hashes ``wanted``."""
    places: dict[int, int] = {}
    for start in range(0, len(array), _READ_AT_ONCE):
        piece = np.asarray(array[start : start + _READ_AT_ONCE])
        for index in np.flatnonzero(np.isin(piece, wanted)).tolist():
            places.setdefault(int(piece[index]), start + index)
        if len(places) == len(wanted):
            break
    return places
