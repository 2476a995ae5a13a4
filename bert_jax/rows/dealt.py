"""Deals the batches of several sources in fixed shares; each batch has rows of one of them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bert_jax.task import Bucket, RowSource


class DealtRows(RowSource):
    """A ``task.RowSource`` whose batches come each from one of several sources, which are its buckets.

    Its epoch has as many rows as the epochs of all sources together, whatever the shares. So within this epoch, a
    source with a large share and few rows is read more than once. Each source goes through its own epochs in order.
    """

    def __init__(self, sources: Mapping[str, RowSource], shares: Mapping[str, float]) -> None:
        """
        Args:
          sources: kind of batch -> its source, whose rows have one length.
          shares: kind of batch -> its share of the batches, in proportion to the others.
        """
        every, whole = sum(one.rows_per_epoch for one in sources.values()), sum(shares.values())
        self._sources = list(sources.values())
        self._buckets = tuple(Bucket(kind, max(1, round(every * shares[kind] / whole)), 1) for kind in sources)
        self._ends = np.cumsum([bucket.rows_per_epoch for bucket in self._buckets])

    @property
    def rows_per_epoch(self) -> int:
        return int(self._ends[-1])

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        return self._buckets

    def rows(self, epochs: np.ndarray, indices: np.ndarray) -> dict[str, np.ndarray]:
        """See ``task.RowSource``; all ``indices`` are of one bucket."""
        chosen = int(np.searchsorted(self._ends, indices[0], side="right"))
        size, source = self._buckets[chosen].rows_per_epoch, self._sources[chosen]
        number = np.asarray(epochs, np.int64) * size + indices - (self._ends[chosen] - size)
        epoch, row = np.divmod(number, source.rows_per_epoch)
        source.prepare(int(epoch.max()) + 1)
        return source.rows(epoch, row)
