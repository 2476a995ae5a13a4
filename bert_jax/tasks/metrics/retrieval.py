"""Finds the nearest vectors, and scores ranked documents: nDCG, recall and reciprocal rank.

The scores are as ``trec_eval`` (and therefore BEIR) defines them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from bert_jax.tasks.metrics.counting import ratio

Relevances = Mapping[str, Mapping[str, int]]  # query -> document -> grade; relevant if above 0
Rankings = Mapping[str, Mapping[str, float]]  # query -> document -> the model's score


def retrieval_metrics(relevances: Relevances, scores: Rankings, cutoffs: Sequence[int] = (10,)) -> dict[str, float]:
    """Return ndcg@k, recall@k and mrr@k for each k of ``cutoffs``, as means over all queries of ``relevances``.

    nDCG uses linear gain and the discount log2(rank + 1) (Jarvelin and Kekalainen 2002). A query that has no scores or
    no relevant document counts as 0. Documents with equal scores are ranked by name in descending order, as in
    trec_eval. Queries that are not in ``relevances`` do not count.
    """
    return {name: ratio(sum(of), len(of)) for name, of in query_scores(relevances, scores, cutoffs).items()}


def query_scores(relevances: Relevances, scores: Rankings, cutoffs: Sequence[int]) -> dict[str, list[float]]:
    """Return the scores of each query of ``relevances``, in their order; ``retrieval_metrics`` returns their means."""
    found: dict[str, list[float]] = {f"{name}@{k}": [] for k in cutoffs for name in ("ndcg", "recall", "mrr")}
    for query, grades in relevances.items():
        gains = [max(grades.get(document, 0), 0) for document in _ranking(scores.get(query, {}))]
        ideal = sorted((grade for grade in grades.values() if grade > 0), reverse=True)
        for k in cutoffs:
            found[f"ndcg@{k}"].append(ratio(_dcg(gains[:k]), _dcg(ideal[:k])))
            found[f"recall@{k}"].append(ratio(sum(gain > 0 for gain in gains[:k]), len(ideal)))
            first = next((1 / rank for rank, gain in enumerate(gains[:k], 1) if gain > 0), 0.0)
            found[f"mrr@{k}"].append(first)
    return found


def _ranking(scores: Mapping[str, float]) -> list[str]:
    """Return the names of the documents, best first."""
    return [name for score, name in sorted(((score, name) for name, score in scores.items()), reverse=True)]


def _dcg(gains: Sequence[float]) -> float:
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, 1))


def unit(vectors: np.ndarray) -> np.ndarray:
    """Return ``vectors`` [..., D] scaled to length 1; a zero vector stays zero."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    unit_length: np.ndarray = vectors / np.maximum(lengths, 1e-12)
    return unit_length


class Nearest:
    """Finds, for each of Q queries, the ``count`` nearest vectors of a large set.

    The vectors are added in blocks, which are not kept.
    """

    def __init__(self, queries: np.ndarray, count: int, similarity: Literal["cosine", "dot"] = "cosine"):
        """Start without vectors. ``queries``: vectors [Q, D]; they need not be normalised."""
        self._scaled = unit if similarity == "cosine" else np.asarray
        self._queries, self._count = self._scaled(queries), count
        self._seen = 0
        self.scores = np.zeros((len(queries), 0), np.float32)  # [Q, <= count], best first
        self.places = np.zeros((len(queries), 0), np.int64)  # numbers of the vectors, counted in the order of adding

    def add(self, block: np.ndarray) -> None:
        """Add a block of vectors [N, D]. Of vectors with equal scores, the vector that was added first ranks first."""
        scores = self._queries @ self._scaled(block).T
        best = np.broadcast_to(np.arange(len(block)), scores.shape)
        if len(block) > self._count:
            best = np.sort(np.argpartition(-scores, self._count, axis=1)[:, : self._count], axis=1)
        scores = np.concatenate([self.scores, np.take_along_axis(scores, best, axis=1)], axis=1)
        places = np.concatenate([self.places, best + self._seen], axis=1)
        order = np.argsort(-scores, axis=1, kind="stable")[:, : self._count]
        self.scores, self.places = (np.take_along_axis(x, order, axis=1) for x in (scores, places))
        self._seen += len(block)
