"""Hashes sentences and documents to 64 bits.

A sentence's hash is the sum over its tokens of a random number for (token, place), which numpy computes for whole
arrays. The lowest byte is replaced by the sentence's length (at most 255), so that a hash shows how long its sentence
is; the other 56 bits and the length tell sentences apart.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bert_jax.rows import random

Hashes = npt.NDArray[np.uint64]
LENGTH_BITS = np.uint64(0xFF)


def token_table(vocab_size: int, name: str) -> Hashes:
    """Return a random number for every token id, [vocab_size]. Different names give different numbers."""
    return random.fold(random.key("inspection", name), np.arange(vocab_size))


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
    return (hashes & ~LENGTH_BITS) | np.minimum(lengths, 255).astype(np.uint64)


def length_of(hashes: Hashes) -> npt.NDArray[np.int64]:
    """Return the length that ``with_length`` put into each hash."""
    return (hashes & LENGTH_BITS).astype(np.int64)
