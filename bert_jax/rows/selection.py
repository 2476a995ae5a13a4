"""Removes the features from rows that an objective does not read."""

from __future__ import annotations

import numpy as np

from bert_jax.task import Bucket, RowSource


class SelectedFeatures(RowSource):
    """A ``task.RowSource`` that wraps another and returns only the features called ``names``."""

    def __init__(self, source: RowSource, names: tuple[str, ...]):
        self._source, self._names = source, names

    @property
    def rows_per_epoch(self) -> int:
        return self._source.rows_per_epoch

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        return self._source.buckets

    def prepare(self, epoch: int) -> None:
        self._source.prepare(epoch)

    def rows(self, epochs: np.ndarray, indices: np.ndarray) -> dict[str, np.ndarray]:
        rows = self._source.rows(epochs, indices)
        return {name: rows[name] for name in self._names}
