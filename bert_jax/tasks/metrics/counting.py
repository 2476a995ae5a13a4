"""What the metrics share: divisions that may have nothing to divide, and the check of lengths."""

from __future__ import annotations

from collections.abc import Sized

from bert_jax.errors import UserError


def check_lengths(labels: Sized, predictions: Sized) -> None:
    """Raise ``UserError`` where there is not one prediction for each label."""
    if len(labels) != len(predictions):
        raise UserError(
            f"{len(predictions)} predictions for {len(labels)} labels; give one for each, in the same order"
        )


def ratio(part: float, whole: float) -> float:
    """``part / whole``, 0 where there is no whole."""
    return float(part / whole) if whole else 0.0


def precision_recall_f1(correct: float, predicted: float, actual: float) -> dict[str, float]:
    """Of counts. Each is 0 where its denominator is (no prediction, no truth), as scikit-learn's zero_division=0.

    F1 is rounded as the official scripts round it: where two thresholds tie, the last bit decides between them.
    """
    precision, recall = ratio(correct, predicted), ratio(correct, actual)
    return {"precision": precision, "recall": recall, "f1": ratio(2 * precision * recall, precision + recall)}
