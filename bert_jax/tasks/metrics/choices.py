"""The metric of multiple choice: the share of questions whose right choice scored highest."""

from __future__ import annotations

from collections.abc import Sequence

from bert_jax.tasks.metrics.counting import check_lengths, ratio


def choice_metrics(labels: Sequence[int], predictions: Sequence[int]) -> dict[str, float]:
    """Return the accuracy of predicted choices.

    Labels and predictions are indices of choices. Questions may have different numbers of choices.
    """
    check_lengths(labels, predictions)
    correct = sum(int(label == choice) for label, choice in zip(labels, predictions, strict=True))
    return {"accuracy": ratio(correct, len(labels))}
