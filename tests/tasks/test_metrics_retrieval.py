"""Ranked documents against trec_eval itself."""

import numpy as np
import pytest
import pytrec_eval

from bert_jax.tasks.metrics.retrieval import retrieval_metrics

CUTOFFS = (1, 3, 10, 100)


def case(seed, *, tied):
    rng = np.random.default_rng(seed)
    relevances, scores = {}, {}
    for query in (f"q{i}" for i in range(rng.integers(1, 20))):
        documents = [f"d{i}" for i in rng.permutation(40)]
        graded = documents[: rng.integers(1, 12)]
        relevances[query] = {d: int(g) for d, g in zip(graded, rng.integers(-1, 4, len(graded)), strict=True)}
        relevances[query][graded[0]] = max(relevances[query][graded[0]], 0)
        found = rng.permutation(documents)[: rng.integers(1, 40)]
        values = rng.integers(0, 4, len(found)) if tied else rng.normal(size=len(found)).astype(np.float32)
        scores[query] = {str(d): float(v) for d, v in zip(found, values, strict=True)}
    return relevances, scores


def trec_eval(relevances, scores):
    measures = {f"ndcg_cut.{','.join(map(str, CUTOFFS))}", f"recall.{','.join(map(str, CUTOFFS))}", "recip_rank"}
    rows = pytrec_eval.RelevanceEvaluator(relevances, measures).evaluate(scores)
    means = {
        f"{ours}@{k}": sum(row[f"{theirs}_{k}"] for row in rows.values())
        for k in CUTOFFS
        for ours, theirs in (("ndcg", "ndcg_cut"), ("recall", "recall"))
    }
    for k in CUTOFFS:  # trec_eval cuts no reciprocal rank: one beyond the cutoff counts as 0
        ranks = [row["recip_rank"] for row in rows.values()]
        means[f"mrr@{k}"] = sum(value for value in ranks if value >= 1 / k - 1e-12)
    return {name: total / len(relevances) for name, total in means.items()}


@pytest.mark.parametrize("tied", [False, True])
def test_scores_are_trec_evals(tied):
    for seed in range(30):
        relevances, scores = case(seed, tied=tied)
        assert retrieval_metrics(relevances, scores, CUTOFFS) == pytest.approx(trec_eval(relevances, scores), abs=1e-9)


def test_a_case_worked_by_hand():
    relevances = {"q": {"a": 2, "b": 1, "c": 0}, "unanswered": {"a": 1}}
    found = retrieval_metrics(relevances, {"q": {"c": 3.0, "a": 2.0, "x": 1.0}}, [2])
    ideal = 2 + 1 / np.log2(3)
    assert found == pytest.approx({"ndcg@2": 2 / np.log2(3) / ideal / 2, "recall@2": 0.25, "mrr@2": 0.25}, abs=1e-12)


def test_equal_scores_do_not_depend_on_the_order_given():
    names = [f"d{i}" for i in range(9)]
    one, other = ({"q": dict.fromkeys(order, 0.5)} for order in (names, names[::-1]))
    relevances = {"q": {"d3": 1}}
    assert retrieval_metrics(relevances, one, [3]) == retrieval_metrics(relevances, other, [3])


def test_nothing_relevant_is_0():
    assert set(retrieval_metrics({"q": {"a": 0}}, {"q": {"a": 1.0}}).values()) == {0.0}
    assert set(retrieval_metrics({}, {}).values()) == {0.0}
    assert set(retrieval_metrics({"q": {"a": 1}}, {"p": {"a": 1.0}}).values()) == {0.0}
