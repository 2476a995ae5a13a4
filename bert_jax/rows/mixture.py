"""Mixes rows of several sources in fixed shares: languages, domains, or old text replayed among new text.

The endless sequence of rows is cut into turns of ``TURN`` rows. In every turn each source has its share of the rows,
and the order of the sources is drawn anew. So any part of training sees the mixture, and any row is found without
counting from the start.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bert_jax.corpora.mixture import TURN
from bert_jax.errors import UserError
from bert_jax.rows import random
from bert_jax.task import RowSource


def _rows_of_a_turn(shares: Sequence[float]) -> np.ndarray:
    """Return how many of ``TURN`` rows each source gets, int64 [n].

    The ``shares`` of the sources add up to 1. The rows are apportioned by the largest remainder; every
    source gets at least one.
    """
    exact = np.array(shares, np.float64) * TURN
    counts = np.maximum(np.floor(exact), 1).astype(np.int64)
    order = np.argsort(-(exact - counts), kind="stable")
    for index in range(TURN - int(counts.sum())):
        counts[order[index % len(order)]] += 1
    while counts.sum() > TURN:
        counts[np.argmax(counts)] -= 1
    return counts


class MixedRows(RowSource):
    """A ``task.RowSource`` that mixes several others.

    Its epoch has as many rows as the epochs of all sources together, whatever the shares. So within this epoch, a
    source with a large share and few rows is read more than once.
    """

    def __init__(self, sources: Sequence[RowSource], shares: Sequence[float], key: np.uint64) -> None:
        """
        Args:
          sources: row sources that all have the same features.
          shares: [n] the share of each source.
          key: the random key of (fingerprints, seed, phase).
        """
        if any(source.buckets for source in sources):
            raise UserError("a mixture has rows of one length: choose config.objective.packing 'packed' or 'none'")
        if not 0 < len(sources) <= TURN:
            raise UserError(f"a mixture of {len(sources)} parts; allowed: 1 to {TURN}")
        self._sources, self._key = list(sources), key
        self._counts = _rows_of_a_turn(shares)
        self._firsts = np.cumsum(self._counts) - self._counts

    @property
    def rows_per_epoch(self) -> int:
        return sum(source.rows_per_epoch for source in self._sources)

    def locate(self, epochs: np.ndarray, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the source [n] of each row, and the row's number [n] in that source's endless sequence."""
        turn, slot = np.divmod(epochs * self.rows_per_epoch + indices, TURN)
        place = random.permute(random.fold(self._key, turn), slot, TURN)
        source = np.searchsorted(self._firsts, place, side="right") - 1
        return source, turn * self._counts[source] + place - self._firsts[source]

    def rows(self, epochs: np.ndarray, indices: np.ndarray) -> dict[str, np.ndarray]:
        source_of, number = self.locate(np.asarray(epochs, np.int64), np.asarray(indices, np.int64))
        batch: dict[str, np.ndarray] = {}
        for index in np.unique(source_of).tolist():
            which = source_of == index
            source = self._sources[index]
            epoch, row = np.divmod(number[which], source.rows_per_epoch)
            source.prepare(int(epoch.max()) + 1)
            for name, values in source.rows(epoch, row).items():
                batch.setdefault(name, np.empty((len(source_of), *values.shape[1:]), values.dtype))[which] = values
        return batch
