"""nDCG, recall and reciprocal rank of ranked documents, as ``trec_eval`` (and therefore BEIR) defines them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from bert_jax.errors import UserError
from bert_jax.tasks.metrics.counting import ratio

Relevances = Mapping[str, Mapping[str, int]]  # query -> document -> grade; relevant if above 0
Rankings = Mapping[str, Mapping[str, float]]  # query -> document -> the model's score


def retrieval_metrics(relevances: Relevances, scores: Rankings, cutoffs: Sequence[int] = (10,)) -> dict[str, float]:
    """Return ndcg@k, recall@k and mrr@k for each k of ``cutoffs``, as means over all queries of ``relevances``.

    nDCG uses linear gain and the discount log2(rank + 1) (Jarvelin and Kekalainen 2002). A query that has no scores or
    no relevant document counts as 0. Documents with equal scores are ranked by name in descending order, as in
    trec_eval.

    Raises ``UserError`` for queries without relevances and for cutoffs below 1.
    """
    unknown = [query for query in scores if query not in relevances]
    if unknown:
        raise UserError(f"{len(unknown)} queries have scores and no relevances, such as {unknown[0]!r}")
    if min(cutoffs, default=1) < 1:
        raise UserError(f"cutoff {min(cutoffs)} of a retrieval metric; allowed: 1 or more")
    sums = {f"{name}@{k}": 0.0 for k in cutoffs for name in ("ndcg", "recall", "mrr")}
    for query, grades in relevances.items():
        gains = [max(grades.get(document, 0), 0) for document in ranking(scores.get(query, {}))]
        ideal = sorted((grade for grade in grades.values() if grade > 0), reverse=True)
        for k in cutoffs:
            sums[f"ndcg@{k}"] += ratio(_dcg(gains[:k]), _dcg(ideal[:k]))
            sums[f"recall@{k}"] += ratio(sum(gain > 0 for gain in gains[:k]), len(ideal))
            sums[f"mrr@{k}"] += next((1 / rank for rank, gain in enumerate(gains[:k], 1) if gain > 0), 0.0)
    return {name: ratio(total, len(relevances)) for name, total in sums.items()}


def ranking(scores: Mapping[str, float]) -> list[str]:
    """Return the names of the documents, best first."""
    return [name for score, name in sorted(((score, name) for name, score in scores.items()), reverse=True)]


def _dcg(gains: Sequence[float]) -> float:
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, 1))
