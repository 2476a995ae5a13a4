"""Correlations and errors of predicted numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from bert_jax.configuration import choose
from bert_jax.errors import UserError
from bert_jax.tasks.metrics.counting import check_lengths


def regression_metrics(names: Sequence[str], labels: Sequence[float], predictions: Sequence[float]) -> dict[str, float]:
    """Return the scores called ``names``: pearson, spearmanr, mean_squared_error or mean_absolute_error.

    For spearmanr, equal values share the mean of their ranks. A correlation is 0 if there are fewer than two examples,
    or if the labels or the predictions are constant: a model that always predicts the same value has learned nothing
    about the order. If a prediction is not finite, scores are nan.

    Raises ``UserError`` for unknown names and for unequal lengths.
    """
    check_names(names)
    check_lengths(labels, predictions)
    true, predicted = np.asarray(labels, np.float64), np.asarray(predictions, np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        return {name: METRICS[name](true, predicted) for name in names}


def check_names(names: Sequence[str]) -> None:
    """Raise ``UserError`` with a list of all names that are not metrics."""
    problems = []
    for name in names:
        try:
            choose("metric", name, METRICS)
        except UserError as error:
            problems.append(str(error))
    if problems:
        raise UserError("; ".join(problems))


def pearson(x: np.ndarray, y: np.ndarray) -> float:
    """Return the linear correlation of two vectors [N] float64, in [-1, 1]; 0 if either vector is constant."""
    if _constant(x) or _constant(y):
        return 0.0
    x, y = x - x.mean(), y - y.mean()
    x, y = x / np.abs(x).max(), y / np.abs(y).max()  # so that squares neither overflow nor underflow
    return float(np.clip((x @ y) / np.sqrt((x @ x) * (y @ y)), -1, 1))


def spearmanr(x: np.ndarray, y: np.ndarray) -> float:
    """Return the Spearman correlation of two vectors: the linear correlation of their ranks."""
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        return float("nan")
    return pearson(ranks(x), ranks(y))


def ranks(values: np.ndarray) -> np.ndarray:
    """Return the ranks [N] of ``values``, from 1. Equal values share the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse]


def _constant(values: np.ndarray) -> bool:
    return values.size < 2 or bool((values == values[0]).all())


def _mean_squared_error(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.square(x - y).mean()) if x.size else 0.0


def _mean_absolute_error(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.abs(x - y).mean()) if x.size else 0.0


METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "pearson": pearson,
    "spearmanr": spearmanr,
    "mean_squared_error": _mean_squared_error,
    "mean_absolute_error": _mean_absolute_error,
}
