"""Has helpers for metrics: ratios whose denominator may be 0, and a check of names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from bert_jax.errors import UserError


def check_each(names: Iterable[str], check: Callable[[str], Any]) -> None:
    """Call ``check`` with every name; raise one ``UserError`` with the texts of all errors."""
    problems = []
    for name in names:
        try:
            check(name)
        except UserError as error:
            problems.append(str(error))
    if problems:
        raise UserError("; ".join(problems))


def ratio(part: float, whole: float) -> float:
    """Return ``part / whole``, or 0 if ``whole`` is 0."""
    return float(part / whole) if whole else 0.0


def precision_recall_f1(correct: float, predicted: float, actual: float) -> dict[str, float]:
    """Return precision, recall and f1 from counts. A score whose denominator is 0 is 0 (scikit-learn: zero_division=0).

    F1 is computed with the same rounding as in the official scripts: two thresholds may have F1 scores that differ only
    in the last bit, and this bit decides which threshold is best.
    """
    precision, recall = ratio(correct, predicted), ratio(correct, actual)
    return {"precision": precision, "recall": recall, "f1": ratio(2 * precision * recall, precision + recall)}
