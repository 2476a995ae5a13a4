"""Computes accuracy, precision, recall, F1 and Matthews correlation from a confusion matrix."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from bert_jax.configuration import choose
from bert_jax.errors import UserError
from bert_jax.tasks.metrics.counting import check_each, precision_recall_f1, ratio

TITLES = {
    "accuracy": "Accuracy",
    "f1": "F1",
    "precision": "Precision",
    "recall": "Recall",
    "f1_macro": "F1, mean over labels",
    "f1_micro": "F1, over all examples",
    "f1_weighted": "F1, labels weighted by their number",
    "matthews_correlation": "Matthews correlation",
}
_Averaged = Callable[[np.ndarray], float]  # confusion matrix [K, K] -> score


def classification_metrics(
    names: Sequence[str],
    labels: Sequence[int],
    predictions: Sequence[int],
    label_names: Sequence[str],
    positive: str | None = None,
) -> dict[str, float]:
    """Return the scores called ``names``. Labels and predictions are indices into ``label_names``.

    Possible names: accuracy; matthews_correlation (also for more than two classes: Gorodkin 2004); precision, recall
    and f1 of the label ``positive`` (if None, of the second of two labels, as in GLUE); and averages of f1, precision
    or recall over labels: ``f1_macro`` (plain mean over the labels that occur, true or predicted), ``f1_micro``,
    ``f1_weighted`` (weighted by the number of true examples), and likewise for precision and recall.

    Raises ``UserError`` for unknown names and for a binary score without a positive label.
    """
    check_names(names, label_names, positive)
    matrix = confusion_matrix(labels, predictions, len(label_names))
    scores = {}
    for name in names:
        if name in BINARY:
            scores[name] = _of_label(matrix, _positive(name, label_names, positive))[name]
        else:
            scores[name] = AVERAGED[name](matrix)
    return scores


def check_names(names: Sequence[str], label_names: Sequence[str], positive: str | None = None) -> None:
    """Raise ``UserError`` for names that ``classification_metrics`` would refuse. This check needs no predictions."""

    def check(name: str) -> None:
        choose("metric", name, {**AVERAGED, **dict.fromkeys(BINARY)})
        if name in BINARY:
            _positive(name, label_names, positive)

    check_each(names, check)


def confusion_matrix(labels: Sequence[int], predictions: Sequence[int], num_labels: int) -> np.ndarray:
    """Return counts [K, K] int64: how many examples of each true label (row) were predicted as each label (column)."""
    true, predicted = np.asarray(labels, np.int64), np.asarray(predictions, np.int64)
    return np.bincount(true * num_labels + predicted, minlength=num_labels**2).reshape(num_labels, num_labels)


def per_label(matrix: np.ndarray, label_names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return precision, recall, f1 and support (number of true examples) of each label, from a confusion matrix."""
    support = matrix.sum(1)
    return {name: {**_of_label(matrix, k), "support": float(support[k])} for k, name in enumerate(label_names)}


def _matthews_correlation(matrix: np.ndarray) -> float:
    """Return the Matthews correlation of true and predicted labels.

    It is 0 if all true labels are the same, or all predicted labels are the same.
    """
    true, predicted = [int(n) for n in matrix.sum(1)], [int(n) for n in matrix.sum(0)]
    total, correct = sum(true), int(np.trace(matrix))
    spread = [total**2 - sum(n * n for n in side) for side in (true, predicted)]  # Python integers: no overflow
    covariance = correct * total - sum(t * p for t, p in zip(true, predicted, strict=True))
    return ratio(covariance, math.sqrt(spread[0]) * math.sqrt(spread[1]))


def _of_label(matrix: np.ndarray, label: int | np.signedinteger) -> dict[str, float]:
    return precision_recall_f1(matrix[label, label], matrix[:, label].sum(), matrix[label].sum())


def _accuracy(matrix: np.ndarray) -> float:
    return ratio(np.trace(matrix), matrix.sum())


def _mean(score: str, weighted: bool) -> _Averaged:
    """Return a function that averages a score over the labels that occur, weighted by their number or not."""

    def mean(matrix: np.ndarray) -> float:
        weights = matrix.sum(1) if weighted else matrix.sum(0) + matrix.sum(1) > 0
        return ratio(sum(_of_label(matrix, k)[score] * weights[k] for k in np.flatnonzero(weights)), weights.sum())

    return mean


def _positive(metric: str, label_names: Sequence[str], positive: str | None) -> int:
    if positive is not None:
        if positive not in label_names:
            raise UserError(f"the positive label {positive!r} is unknown; labels: {', '.join(label_names)}")
        return list(label_names).index(positive)
    if len(label_names) != 2:
        raise UserError(
            f"metric {metric!r} is of one label against the rest, and there are {len(label_names)}: name the positive "
            f"one, or take {metric}_macro, {metric}_micro or {metric}_weighted"
        )
    return 1


BINARY = ("precision", "recall", "f1")
AVERAGED: dict[str, _Averaged] = {
    "accuracy": _accuracy,
    "matthews_correlation": _matthews_correlation,
    # With one label per example, micro averages equal the accuracy.
    **{f"{score}_micro": _accuracy for score in BINARY},
    **{f"{score}_macro": _mean(score, weighted=False) for score in BINARY},
    **{f"{score}_weighted": _mean(score, weighted=True) for score in BINARY},
}
