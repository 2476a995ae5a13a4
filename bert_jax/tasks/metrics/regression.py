"""Correlations and errors of predicted numbers."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from bert_jax.configuration import choose
from bert_jax.tasks.metrics.counting import check_each, check_lengths

TITLES = {"pearson": "Pearson correlation", "spearmanr": "Spearman correlation"}


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
    check_each(names, lambda name: choose("metric", name, METRICS))


def _correlation(kind: Literal["pearsonr", "spearmanr"], x: np.ndarray, y: np.ndarray) -> float:
    """Return a correlation of two vectors [N] float64, in [-1, 1]; 0 if either vector is constant."""
    from scipy import stats  # takes half a second

    if x.size < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return 0.0
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        return float("nan")
    with warnings.catch_warnings():  # of vectors that are nearly constant
        warnings.simplefilter("ignore", stats.NearConstantInputWarning)
        return float(getattr(stats, kind)(x, y).statistic)


def _mean_squared_error(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.square(x - y).mean()) if x.size else 0.0


def _mean_absolute_error(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.abs(x - y).mean()) if x.size else 0.0


METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "pearson": functools.partial(_correlation, "pearsonr"),
    "spearmanr": functools.partial(_correlation, "spearmanr"),
    "mean_squared_error": _mean_squared_error,
    "mean_absolute_error": _mean_absolute_error,
}
