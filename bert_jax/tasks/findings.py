"""Describes what predictions get wrong: confused labels, scores of each label, the worst examples.

One function serves every task, because the kind of a prediction can be told from the keys of its record.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.records import Example
from bert_jax.tasks.metrics.classification import confusion_matrix, per_label
from bert_jax.tasks.metrics.entities import entity_metrics
from bert_jax.tasks.metrics.spans import exact_match

Record = Mapping[str, Any]
Pair = tuple[Example, Record]
MAX_WRONG = 30
MAX_CONFUSION = 30  # with more labels, only the so many most confused pairs of labels are shown
MAX_POINTS = 500
MAX_CHARACTERS = 480  # longer texts are cut
MAX_WORDS = 120
AROUND = 120  # characters of the context to show on either side of an answer


def kind_of(record: Record) -> str:
    """Return the kind of a record: "tags", "answers", "classes", "choices", "numbers", "pairs" or "vectors".

    Records of the kind "vectors" have no findings.
    """
    shares, prediction = record.get("probabilities"), record.get("prediction")
    if "words" in record:
        return "tags"
    if "n_best" in record:
        return "answers"
    if isinstance(shares, Mapping):
        return "classes"
    if isinstance(shares, list):
        return "choices"
    if isinstance(prediction, float):
        return "numbers" if "label" in record else "pairs"
    return "vectors"


def findings(
    labels: Sequence[str],
    examples: Sequence[Example],
    records: Sequence[Record],
    entities: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the findings about a split, as plain JSON values; {} if no answer is known.

    Args:
      labels: names of the classes or tags.
      records: one record per example, in the same order, from ``Task.predictions``.
      entities: ``mode`` and ``scheme`` of ``entity_metrics``, if the tags mark entities. If None, each tag counts on
        its own.

    Returns:
      ``kind`` and ``num_answered``; ``wrong`` (the worst examples, the most confidently wrong first) and ``num_wrong``;
      for classes and tags ``confusion`` and ``per_label``; for numbers ``points`` ([label, prediction]).
    """
    kind = kind_of(records[0]) if records else "vectors"
    pairs = [pair for pair in zip(examples, records, strict=True) if _known(kind, *pair)]
    if not pairs or kind == "vectors":
        return {}
    result: dict[str, Any] = {"kind": kind, "num_answered": len(pairs)}
    if kind in ("classes", "tags"):
        true, predicted = _flat(pairs)
        number = {name: i for i, name in enumerate(labels)}
        matrix = confusion_matrix([number[n] for n in true], [number[n] for n in predicted], len(labels))
        result |= confusion(matrix, labels)
        result["per_label"] = per_label(matrix, labels) if entities is None else _per_type(pairs, entities)
    if kind == "numbers":
        result["points"] = [[r["label"], r["prediction"]] for _, r in pairs[:: -(-len(pairs) // MAX_POINTS)]]
    wrong = sorted(((*WEIGHTS[kind](*pair), pair) for pair in pairs), key=lambda one: (-one[0], -one[1]))
    if kind in ("numbers", "pairs"):
        return result | {"wrong": [SHOWN[kind](*pair) for _, _, pair in wrong[:MAX_WRONG]]}
    wrong = [one for one in wrong if one[0]]
    return result | {"num_wrong": len(wrong), "wrong": [SHOWN[kind](*pair) for _, _, pair in wrong[:MAX_WRONG]]}


def is_wrong(example: Example, record: Record) -> bool | None:
    """Return whether a prediction is wrong.

    Return None if the answer is unknown, and for the kinds "numbers", "pairs" and "vectors".
    """
    kind = kind_of(record)
    if kind in ("numbers", "pairs", "vectors") or not _known(kind, example, record):
        return None
    return bool(WEIGHTS[kind](example, record)[0])


def sureness(example: Example, record: Record) -> float:
    """Return the number by which records are sorted, largest first: the confidence of the prediction.

    For the kind "numbers" it is the absolute error instead; for "pairs", minus the cosine.
    """
    return WEIGHTS[kind_of(record)](example, record)[1]


def confusion(matrix: np.ndarray, labels: Sequence[str]) -> dict[str, Any]:
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


def clipped(text: Any, length: int = MAX_CHARACTERS) -> str:
    """Return ``text`` without empty lines, cut to ``length`` characters."""
    text = "\n".join(line for line in str(text).splitlines() if line.strip())
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"


def _known(kind: str, example: Example, record: Record) -> bool:
    if kind == "pairs":
        return bool(example.get("positive"))
    return record.get("answers" if kind == "answers" else "label") is not None


def _flat(pairs: Sequence[Pair]) -> tuple[list[str], list[str]]:
    """Return the true and the predicted labels of all examples. An example with tags gives one label per word."""
    true = [r["label"] if isinstance(r["label"], list) else [r["label"]] for _, r in pairs]
    found = [r["prediction"] if isinstance(r["prediction"], list) else [r["prediction"]] for _, r in pairs]
    return [name for names in true for name in names], [name for names in found for name in names]


def _per_type(pairs: Sequence[Pair], entities: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    figures = entity_metrics([r["label"] for _, r in pairs], [r["prediction"] for _, r in pairs], **entities)
    types = [name.removesuffix("_support") for name in figures if name.endswith("_support")]
    return {
        name: {score: figures[f"{name}_{score}"] for score in ("precision", "recall", "f1", "support")}
        for name in types
    }


# ---- For each kind: (is it wrong, how sure is it), and what the report shows ----------------------------------------


def _class_weight(example: Example, record: Record) -> tuple[float, float]:
    del example
    return float(record["label"] != record["prediction"]), max(record["probabilities"].values())


def _class_shown(example: Example, record: Record) -> dict[str, Any]:
    shown = {"id": record["id"], "text": clipped(example["text"])}
    if example.get("pair") is not None:
        shown["pair"] = clipped(example["pair"])
    shares = record["probabilities"]
    truth, found = record["label"], record["prediction"]
    return shown | {"label": truth, "prediction": found, "share": shares[found], "label_share": shares.get(truth)}


def _tags_weight(example: Example, record: Record) -> tuple[float, float]:
    del example
    rows = zip(record["label"], record["prediction"], record["probabilities"], strict=True)
    wrong = [share for truth, found, share in rows if truth != found]
    return float(bool(wrong)), max(wrong or record["probabilities"], default=0.0)


def _tags_shown(example: Example, record: Record) -> dict[str, Any]:
    del example
    cut = {name: list(record[name][:MAX_WORDS]) for name in ("words", "label", "prediction")}
    return {"id": record["id"], "share": _tags_weight({}, record)[1], **cut}


def _choices_weight(example: Example, record: Record) -> tuple[float, float]:
    del example
    return float(record["label"] != record["prediction"]), max(record["probabilities"])


def _choices_shown(example: Example, record: Record) -> dict[str, Any]:
    shown = {name: clipped(example[name]) for name in ("context", "question") if example.get(name)}
    choices = [clipped(choice, 300) for choice in example["choices"]]
    answer = {"label": record["label"], "prediction": record["prediction"], "shares": record["probabilities"]}
    return {"id": record["id"], **shown, "choices": choices, **answer}


def _answers_weight(example: Example, record: Record) -> tuple[float, float]:
    del example
    right = any(exact_match(answer, record["prediction"]) for answer in record["answers"] or [""])
    return float(not right), _answer_share(record)


def _answer_share(record: Record) -> float:
    entry = next((e for e in record["n_best"] if e["text"] == record["prediction"]), None)
    return float(entry["probability"]) if entry else 0.0


def _answers_shown(example: Example, record: Record) -> dict[str, Any]:
    shown = {"id": record["id"], "question": clipped(example["question"]), "share": _answer_share(record)}
    shown |= {"answers": list(dict.fromkeys(record["answers"])), "prediction": record["prediction"]}
    return shown | {"context": _excerpt(example, record)}


def _excerpt(example: Example, record: Record) -> list[list[str]]:
    """Return the context around the predicted and the right answer, as a list of [text, mark].

    The mark is "predicted", "right" or "both" for text of these answers, "gap" where text was left out, and else "".
    """
    context = example["context"]
    found = None if record.get("start") is None else (record["start"], record["end"])
    marked = {"predicted": found, "right": _first_answer(example)}
    spans = {name: span for name, span in marked.items() if span is not None}
    near = {i for start, end in spans.values() for i in range(max(0, start - AROUND), min(len(context), end + AROUND))}
    near = near or set(range(min(len(context), 2 * AROUND)))
    parts: list[list[str]] = []
    before = -1
    for i in sorted(near):
        inside = [name for name, (start, end) in spans.items() if start <= i < end]
        mark = "both" if len(inside) == 2 else inside[0] if inside else ""
        if i != before + 1:
            parts.append(["…", "gap"])
        if not parts or parts[-1][1] != mark:
            parts.append(["", mark])
        parts[-1][0] += context[i]
        before = i
    return parts if before == len(context) - 1 else [*parts, ["…", "gap"]]


def _first_answer(example: Example) -> tuple[int, int] | None:
    for answer in example.get("answers") or ():
        start, text = answer["answer_start"], answer["text"]
        if text and example["context"].startswith(text, start):
            return start, start + len(text)
    return None


def _numbers_weight(example: Example, record: Record) -> tuple[float, float]:
    del example
    gap = abs(record["label"] - record["prediction"])
    return 1.0, gap if math.isfinite(gap) else math.inf


def _numbers_shown(example: Example, record: Record) -> dict[str, Any]:
    shown = {name: clipped(example[name]) for name in ("text", "pair") if example.get(name)}
    return {"id": record["id"], **shown, "label": record["label"], "prediction": record["prediction"]}


def _pairs_weight(example: Example, record: Record) -> tuple[float, float]:
    del example
    return 1.0, -record["prediction"]


def _pairs_shown(example: Example, record: Record) -> dict[str, Any]:
    shown = {"text": clipped(example["text"]), "pair": clipped(example["positive"])}
    return {"id": record["id"], **shown, "prediction": record["prediction"]}


WEIGHTS: dict[str, Callable[[Example, Record], tuple[float, float]]] = {
    "classes": _class_weight,
    "tags": _tags_weight,
    "choices": _choices_weight,
    "answers": _answers_weight,
    "numbers": _numbers_weight,
    "pairs": _pairs_weight,
}
SHOWN: dict[str, Callable[[Example, Record], dict[str, Any]]] = {
    "classes": _class_shown,
    "tags": _tags_shown,
    "choices": _choices_shown,
    "answers": _answers_shown,
    "numbers": _numbers_shown,
    "pairs": _pairs_shown,
}
