"""Selects single positions, uniformly without replacement (Devlin et al. 2019, section 3.1)."""

from __future__ import annotations

import dataclasses

import numpy as np

from bert_jax.rows import random
from bert_jax.rows.interfaces import Bools, Selected


@dataclasses.dataclass(frozen=True)
class Config:
    """The options: this strategy has none."""


def select(candidates: Bools, starts: Bools, counts: np.ndarray, keys: random.Bits, options: Config) -> Selected:
    """Select exactly ``counts`` positions in each row: the candidates with the smallest hashes. Units are ignored."""
    del starts, options
    bits = ranks(candidates, keys)
    threshold = np.take_along_axis(np.sort(bits, axis=1), counts[:, None] - 1, axis=1)
    return Selected(bits <= threshold)


def ranks(which: Bools, keys: random.Bits) -> random.Bits:
    """Return random numbers [n, L], all different within a row; the largest uint64 wherever ``which`` is false."""
    positions = np.arange(which.shape[1])
    bits = random.fold(keys[:, None], positions)
    bits &= ~np.uint64(0xFFFF)
    bits |= positions.astype(np.uint64)
    bits[~which] = np.iinfo(np.uint64).max
    return bits
