"""Computes the Pearson and the Spearman correlation of predicted and right numbers, and mean errors (STS-B)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np

from bert_jax.configuration import choose
from bert_jax.tasks.metrics.counting import check_each

# Every metric that ``config.task.metrics`` may name, with its title.
TITLES = {
    "pearson": "Pearson correlation",
    "spearmanr": "Spearman correlation",
    "mean_squared_error": "mean squared error",
    "mean_absolute_error": "mean absolute error",
}


def regression_metrics(names: Sequence[str], labels: Sequence[float], predictions: Sequence[float]) -> dict[str, float]:
    """Return the scores called ``names``: pearson, spearmanr, mean_squared_error or mean_absolute_error.

    For spearmanr, equal values share the mean of their ranks. A correlation is 0 if there are fewer than two examples,
    or if the labels or the predictions are constant: a model that always predicts the same value has learned nothing
    about the order. Errors are in the labels' unit, or its square. If a prediction is not finite, scores are nan.

    Raises ``UserError`` for unknown names.
    """
    check_names(names)
    true, predicted = np.asarray(labels, np.float64), np.asarray(predictions, np.float64)
    return {name: _score(name, true, predicted) for name in names}


def check_names(names: Sequence[str]) -> None:
    """Raise ``UserError`` with a list of all names that are not metrics."""
    check_each(names, lambda name: choose("metric", name, TITLES))


def _score(name: str, x: np.ndarray, y: np.ndarray) -> float:
    from scipy import stats  # takes half a second

    if name in ("mean_squared_error", "mean_absolute_error"):
        errors = (x - y) ** 2 if name == "mean_squared_error" else np.abs(x - y)
        return float(errors.mean()) if x.size else 0.0
    if x.size < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return 0.0
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        return float("nan")
    with warnings.catch_warnings():  # of vectors that are nearly constant
        warnings.simplefilter("ignore", stats.NearConstantInputWarning)
        return float((stats.pearsonr if name == "pearson" else stats.spearmanr)(x, y).statistic)
