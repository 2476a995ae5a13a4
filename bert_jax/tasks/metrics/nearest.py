"""Finds the nearest vectors by cosine similarity."""

from __future__ import annotations

import numpy as np


def unit(vectors: np.ndarray) -> np.ndarray:
    """Return ``vectors`` [N, D] scaled to length 1; a zero vector stays zero."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    unit_length: np.ndarray = vectors / np.maximum(lengths, 1e-12)
    return unit_length


class Nearest:
    """Finds, for each of Q queries, the ``count`` nearest vectors of a large set.

    The vectors are added in blocks, which are not kept.
    """

    def __init__(self, queries: np.ndarray, count: int):
        """Start without vectors. ``queries``: vectors [Q, D]; they need not be normalised."""
        self._queries, self._count = unit(queries), count
        self._seen = 0
        self.scores = np.zeros((len(queries), 0), np.float32)  # [Q, <= count], best first
        self.places = np.zeros((len(queries), 0), np.int64)  # numbers of the vectors, counted in the order of adding

    def add(self, block: np.ndarray) -> None:
        """Add a block of vectors [N, D]. Of vectors with equal scores, the one that was added first ranks first."""
        scores = self._queries @ unit(block).T
        best = np.broadcast_to(np.arange(len(block)), scores.shape)
        if len(block) > self._count:
            best = np.sort(np.argpartition(-scores, self._count, axis=1)[:, : self._count], axis=1)
        scores = np.concatenate([self.scores, np.take_along_axis(scores, best, axis=1)], axis=1)
        places = np.concatenate([self.places, best + self._seen], axis=1)
        order = np.argsort(-scores, axis=1, kind="stable")[:, : self._count]
        self.scores, self.places = (np.take_along_axis(x, order, axis=1) for x in (scores, places))
        self._seen += len(block)
