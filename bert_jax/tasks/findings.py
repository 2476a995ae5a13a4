"""Describes what predictions get wrong: confused labels, scores of each label, the worst examples."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.records import Example
from bert_jax.tasks.metrics.classification import confusion_matrix, per_label
from bert_jax.tasks.metrics.entities import entity_metrics

PredictionRecord = Mapping[str, Any]
_Pair = tuple[Example, PredictionRecord]
_MAX_WRONG = 30
MAX_CONFUSION = 30  # with more labels, only the so many most confused pairs of labels are shown
_MAX_CHARACTERS = 480  # longer texts are cut


@dataclasses.dataclass(frozen=True)
class Judge:
    """What the report says of the predictions of a task. ``Task.predictions`` gives a record for each example.

    Attributes:
      form: how the report shows them: "classes", "tags", "choices", "answers", "numbers" or "pairs" (``report_errors``
        draws each from certain entries of what ``show`` returns); for any other form the report lists the entries.
      weigh: returns whether a prediction is wrong (1 or 0) and how sure it is: the surest wrong predictions come first.
      show: returns what the report shows of a prediction, as plain JSON values.
      is_known: returns whether the answer is known.
      by_degree: whether a prediction is neither right nor wrong, but more or less so, as a number is.
      entities: returns ``mode`` and ``scheme`` of ``entity_metrics`` from the task's config, if tags mark entities.
    """

    form: str
    weigh: Callable[[PredictionRecord], tuple[float, float]]
    show: Callable[[Example, PredictionRecord], dict[str, Any]]
    is_known: Callable[[PredictionRecord], bool] = lambda record: record.get("label") is not None
    by_degree: bool = False
    entities: Callable[[Any], Mapping[str, Any] | None] = lambda config: None


def findings(
    judge: Judge,
    labels: Sequence[str],
    examples: Sequence[Example],
    records: Sequence[PredictionRecord],
    entities: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the findings about a split, as plain JSON values; {} if no answer is known.

    Args:
      labels: names of the classes or tags.
      records: one record per example, in the same order, from ``Task.predictions``.
      entities: as from ``judge.entities``. If None, each tag counts by itself.

    Returns:
      ``kind`` and ``num_answered``; ``wrong`` (the worst examples, the most confidently wrong first) and ``num_wrong``;
      for classes and tags ``confusion`` and ``per_label``.
    """
    pairs = [pair for pair in zip(examples, records, strict=True) if judge.is_known(pair[1])]
    if not pairs:
        return {}
    result: dict[str, Any] = {"kind": judge.form, "num_answered": len(pairs)}
    if judge.form in ("classes", "tags"):
        true, predicted = _flat(pairs)
        number = {name: i for i, name in enumerate(labels)}
        matrix = confusion_matrix([number[n] for n in true], [number[n] for n in predicted], len(labels))
        result |= _confusion(matrix, labels)
        result["per_label"] = per_label(matrix, labels) if entities is None else _per_type(pairs, entities)
    weighed = sorted(((*judge.weigh(pair[1]), pair) for pair in pairs), key=lambda one: (-one[0], -one[1]))
    wrong = [pair for is_wrong, _, pair in weighed if judge.by_degree or is_wrong]
    if not judge.by_degree:
        result["num_wrong"] = len(wrong)
    return result | {"wrong": [judge.show(*pair) for pair in wrong[:_MAX_WRONG]]}


def _confusion(matrix: np.ndarray, labels: Sequence[str]) -> dict[str, Any]:
    """Return ``confusion``: counts [K][K] with a row per true label and a column per predicted label.

    If there are more than ``MAX_CONFUSION`` labels, return ``confused`` instead: the most common mistakes, each as
    [true label, predicted label, count, number of examples with this true label].
    """
    if len(labels) <= MAX_CONFUSION:
        return {"confusion": {"labels": list(labels), "counts": matrix.tolist()}}
    off = matrix - np.diag(np.diag(matrix))
    places = np.argsort(-off, axis=None, kind="stable")[:MAX_CONFUSION]
    rows, columns = (p.tolist() for p in np.unravel_index(places, off.shape))
    listed = [
        [labels[i], labels[j], int(off[i, j]), int(matrix[i].sum())]
        for i, j in zip(rows, columns, strict=True)
        if off[i, j]
    ]
    return {"confused": listed}


def clip(text: Any, length: int = _MAX_CHARACTERS) -> str:
    """Return ``text`` without empty lines, cut to ``length`` characters."""
    text = "\n".join(line for line in str(text).splitlines() if line.strip())
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"


def _flat(pairs: Sequence[_Pair]) -> tuple[list[str], list[str]]:
    """Return the true and the predicted labels of all examples. An example with tags gives one label per word."""
    true = [r["label"] if isinstance(r["label"], list) else [r["label"]] for _, r in pairs]
    found = [r["prediction"] if isinstance(r["prediction"], list) else [r["prediction"]] for _, r in pairs]
    return [name for names in true for name in names], [name for names in found for name in names]


def _per_type(pairs: Sequence[_Pair], entities: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    figures = entity_metrics([r["label"] for _, r in pairs], [r["prediction"] for _, r in pairs], **entities)
    types = [name.removesuffix("_support") for name in figures if name.endswith("_support")]
    return {
        name: {score: figures[f"{name}_{score}"] for score in ("precision", "recall", "f1", "support")}
        for name in types
    }
