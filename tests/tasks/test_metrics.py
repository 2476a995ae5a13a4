"""Classification and regression against scikit-learn and scipy."""

import math

import numpy as np
import pytest
import scipy.stats
from sklearn import metrics as sklearn_metrics

from bert_jax.errors import UserError
from bert_jax.tasks.metrics import classification, regression
from bert_jax.tasks.metrics.classification import classification_metrics, confusion_matrix

CLOSE = {"abs": 1e-9, "rel": 0}
NAMES = list(classification.AVERAGED)


def label_cases():
    """(labels, predictions, K): random ones, lopsided ones, and the degenerate ones."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        k, n = int(rng.integers(2, 7)), int(rng.integers(1, 200))
        shares = rng.dirichlet(np.full(k, 0.3))  # some labels hardly occur, or not at all
        labels = rng.choice(k, n, p=shares)
        yield labels, np.where(rng.random(n) < 0.6, labels, rng.integers(0, k, n)), k
    yield np.zeros(5, int), np.zeros(5, int), 2
    yield np.ones(5, int), np.zeros(5, int), 2
    yield np.array([0, 1, 0, 1]), np.zeros(4, int), 3
    yield np.zeros(4, int), np.array([0, 1, 2, 1]), 3
    yield np.array([1, 0]), np.array([0, 1]), 2


def sklearn_score(name, labels, predictions):
    if name == "accuracy":
        return sklearn_metrics.accuracy_score(labels, predictions)
    if name == "matthews_correlation":
        return sklearn_metrics.matthews_corrcoef(labels, predictions)
    score, _, average = name.partition("_")
    return getattr(sklearn_metrics, f"{score}_score")(labels, predictions, average=average, zero_division=0)


@pytest.mark.filterwarnings("ignore:A single label was found")
def test_classification_is_scikit_learns():
    for labels, predictions, k in label_cases():
        ours = classification_metrics(NAMES, labels.tolist(), predictions.tolist(), [f"label {i}" for i in range(k)])
        theirs = {name: sklearn_score(name, labels, predictions) for name in NAMES}
        if len({*labels, *predictions}) == 1:
            theirs["matthews_correlation"] = 0.0
        assert ours == pytest.approx(theirs, **CLOSE)


def test_each_label_and_the_confusion_matrix_are_scikit_learns():
    for labels, predictions, k in label_cases():
        names = [f"label {i}" for i in range(k)]
        matrix = confusion_matrix(labels, predictions, k)
        np.testing.assert_array_equal(matrix, sklearn_metrics.confusion_matrix(labels, predictions, labels=range(k)))
        found = classification.per_label(matrix, names)
        theirs = sklearn_metrics.precision_recall_fscore_support(labels, predictions, labels=range(k), zero_division=0)
        for i, name in enumerate(names):
            expected = dict(zip(("precision", "recall", "f1", "support"), (side[i] for side in theirs), strict=True))
            assert found[name] == pytest.approx(expected, **CLOSE)
            of_one = classification_metrics(classification.BINARY, labels, predictions, names, positive=name)
            assert of_one == pytest.approx({n: expected[n] for n in classification.BINARY}, **CLOSE)


def test_a_case_worked_by_hand():
    # Of "yes": 2 right, 1 false alarm, 2 missed.
    labels, predictions = [1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 1, 0]
    found = classification_metrics(["precision", "recall", "f1", "accuracy"], labels, predictions, ["no", "yes"])
    assert found == pytest.approx({"precision": 2 / 3, "recall": 1 / 2, "f1": 4 / 7, "accuracy": 1 / 2}, **CLOSE)
    other = classification_metrics(["f1"], labels, predictions, ["no", "yes"], positive="no")
    assert other["f1"] == pytest.approx(2 / 5, **CLOSE)


def test_nothing_to_score_is_0():
    assert set(classification_metrics([*NAMES, "f1"], [], [], ["no", "yes"]).values()) == {0.0}
    assert set(regression.regression_metrics(list(regression.TITLES), [], []).values()) == {0.0}


@pytest.mark.parametrize(
    ("names", "labels", "predictions", "label_names", "positive", "message"),
    [
        (["acuracy", "f2"], [0], [0], ["a", "b"], None, "did you mean 'accuracy'.*unknown metric 'f2'; .*valid: acc"),
        (["f1"], [0], [0], ["a", "b", "c"], None, "there are 3: name the positive one, or take f1_macro"),
        (["f1"], [0], [0], ["a", "b"], "c", "positive label 'c' is unknown; labels: a, b"),
    ],
)
def test_bad_input_of_classification(names, labels, predictions, label_names, positive, message):
    with pytest.raises(UserError, match=message):
        classification_metrics(names, labels, predictions, label_names, positive)


def value_cases():
    for seed in range(40):
        rng = np.random.default_rng(seed)
        labels = rng.normal(size=rng.integers(2, 200)) * 10.0 ** rng.integers(-3, 4) + rng.normal()
        predictions = labels * rng.normal() + rng.normal(size=labels.size)
        yield labels, predictions
        yield np.round(labels), np.round(predictions * 2) / 2  # ties
    yield np.array([1.0, 2.0, 3.0]), np.array([3.0, 2.0, 1.0])


@pytest.mark.filterwarnings("ignore:An input array is constant")
def test_regression_is_scipys_and_scikit_learns():
    tied = 0
    for labels, predictions in value_cases():
        ours = regression.regression_metrics(list(regression.TITLES), labels, predictions)
        theirs = {
            "pearson": np.nan_to_num(scipy.stats.pearsonr(labels, predictions).statistic),
            "spearmanr": np.nan_to_num(scipy.stats.spearmanr(labels, predictions).statistic),
        }
        theirs["mean_squared_error"] = sklearn_metrics.mean_squared_error(labels, predictions)
        theirs["mean_absolute_error"] = sklearn_metrics.mean_absolute_error(labels, predictions)
        assert ours == pytest.approx(theirs, **CLOSE)
        tied += len(set(predictions)) < predictions.size
    assert tied > 20


def test_a_constant_prediction_has_no_correlation():
    found = regression.regression_metrics(["pearson", "spearmanr"], [1.0, 2.0, 3.0], [0.1] * 3)
    assert found == {"pearson": 0.0, "spearmanr": 0.0}


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_predictions_that_are_not_finite_are_not_hidden(bad):
    found = regression.regression_metrics(list(regression.TITLES), [1.0, 2.0, 3.0], [1.0, bad, 2.0])
    assert not any(math.isfinite(value) for value in found.values())


def test_an_unknown_metric_of_regression_lists_the_known():
    with pytest.raises(UserError, match=r"unknown metric 'pearsonr'; did you mean 'pearson'\? valid: mean_abs"):
        regression.regression_metrics(["pearsonr"], [1.0], [1.0])
