"""Deals the batches of several sources, in shares; each batch has rows of one source."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from bert_jax.task import Bucket, RowSource


class DealtRows(RowSource):
    """A ``task.RowSource`` over several sources; each batch has rows of one source.

    Each source goes through its epochs in order. ``Bucket.passes`` says how many batches of each source an epoch has.
    """

    def __init__(self, sources: Sequence[tuple[RowSource, tuple[Bucket, ...]]]) -> None:
        """Take pairs of a source and its buckets; a source whose rows have one length is one bucket."""
        self._sources = [source for source, _ in sources]
        self._buckets = tuple(bucket for _, buckets in sources for bucket in buckets)
        self._ends = np.cumsum([source.rows_per_epoch for source in self._sources])

    @property
    def rows_per_epoch(self) -> int:
        return int(self._ends[-1])

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        return self._buckets

    def rows(self, epochs: np.ndarray, indices: np.ndarray) -> dict[str, np.ndarray]:
        """See ``task.RowSource``; all ``indices`` are of one source, and ``epochs`` are epochs of this source."""
        chosen = int(np.searchsorted(self._ends, indices[0], side="right"))
        source, epochs = self._sources[chosen], np.asarray(epochs, np.int64)
        source.prepare(int(epochs.max()) + 1)
        return source.rows(epochs, indices - (int(self._ends[chosen]) - source.rows_per_epoch))


def deal(sources: Mapping[str, RowSource], passes: Mapping[str, tuple[float, ...]]) -> DealtRows:
    """Return the rows of several sources.

    Args:
      sources: the kind of the batches -> the rows. If a source has buckets, the buckets say the kinds.
      passes: the ``Bucket.passes`` of each source.
    """
    return DealtRows(
        [
            (source, tuple(dataclasses.replace(one, passes=passes[kind]) for one in buckets_of(source, kind)))
            for kind, source in sources.items()
        ]
    )


def buckets_of(source: RowSource, kind: str) -> tuple[Bucket, ...]:
    """Return the buckets of a source; rows of one length, which are of ``kind``, are one bucket."""
    return source.buckets or (Bucket(kind, source.rows_per_epoch, 1),)


def passes_of(sizes: Mapping[str, int], shares: Mapping[str, float]) -> dict[str, float]:
    """Return the ``Bucket.passes`` that give sources ``shares`` of an epoch with as many rows as all sources have.

    Args:
      sizes: source -> the number of its rows, or of its batches.
      shares: source -> its share, in proportion to the others.
    """
    every, whole = sum(sizes.values()), sum(shares.values())
    return {name: every * shares[name] / whole / size for name, size in sizes.items()}
