"""Random numbers without a generator state: every draw is a hash of its purpose.

A *key* is a uint64 made from a seed, a name and counters; a draw is the key folded with one more counter and mixed by
the finaliser of splitmix64 (Steele, Lea & Flood 2014; constants of Stafford's variant 13). Draws can be made in any
order, in any process and in any batch, and the bits do not depend on the version of numpy.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_FEISTEL_ROUNDS = 4


def key(*parts: int | str) -> np.uint64:
    """Return a key made from names and numbers, for example ``key(fingerprint, seed, phase, "plan")``."""
    text = "\x00".join(f"{type(part).__name__}:{part}" for part in parts)
    return np.uint64(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little"))


def fold(keys: npt.ArrayLike, counters: npt.ArrayLike) -> Bits:
    """Return new keys made from ``keys`` and ``counters`` (broadcast together). Each key is also 64 random bits."""
    bits = np.atleast_1d(np.asarray(counters)).astype(np.uint64)  # a fresh array: mixed in place below
    bits += np.uint64(1)
    bits *= _GOLDEN
    bits = bits + np.asarray(keys, np.uint64)
    shifted = bits >> np.uint64(30)
    bits ^= shifted
    bits *= _FIRST
    bits ^= np.right_shift(bits, np.uint64(27), out=shifted)
    bits *= _SECOND
    bits ^= np.right_shift(bits, np.uint64(31), out=shifted)
    return bits


def uniform(bits: Bits) -> npt.NDArray[np.float64]:
    """Return numbers in [0, 1) from the upper 53 of 64 random bits."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def integers(bits: Bits, high: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Return integers in [0, high). ``high`` <= 2**40 is broadcast against ``bits``; the bias is below high / 2**53."""
    return (uniform(bits) * np.asarray(high)).astype(np.int64)


def permute(keys: npt.ArrayLike, indices: npt.ArrayLike, size: int) -> npt.NDArray[np.int64]:
    """Return where a random permutation of ``range(size)`` sends ``indices`` [n].

    Each key in ``keys``, [n] or [], has its own permutation: a generalised Feistel network on the smallest near-square
    grid that holds ``size`` (Black & Rogaway 2002), repeated until the result is below ``size``. Memory is constant, so
    a shuffle of a billion rows starts at once.
    """
    rows = -(-size // (columns := max(1, int(np.ceil(np.sqrt(size))))))
    indices = np.atleast_1d(np.asarray(indices, np.int64))
    result, keys = indices.copy(), np.broadcast_to(np.asarray(keys, np.uint64), indices.shape)
    inside = np.arange(len(result))
    while inside.size:
        here = keys[inside]
        row, column = np.divmod(result[inside], columns)
        for i in range(_FEISTEL_ROUNDS):
            row = (row + integers(fold(fold(here, 2 * i), column), rows)) % rows
            column = (column + integers(fold(fold(here, 2 * i + 1), row), columns)) % columns
        result[inside] = row * columns + column
        inside = inside[result[inside] >= size]
    return result
