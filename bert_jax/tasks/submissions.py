"""Writes predictions as benchmarks accept them: GLUE's TSV files, SQuAD's JSON, and columns for conlleval."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from etils import epath

from bert_jax.configuration import choose
from bert_jax.errors import UserError
from bert_jax.storage import files


class _Glue(NamedTuple):
    """The file name of a GLUE task for gluebenchmark.com, and a dict: our label -> the label in the file."""

    file: str
    spelling: dict[str, str] | None  # None if predictions are real numbers


def _two(negative: str, positive: str) -> dict[str, str]:
    return {"0": "0", "1": "1", negative: "0", positive: "1"}  # our labels are names as in TFDS, or 0 and 1


_THREE = {name: name for name in ("entailment", "neutral", "contradiction")}
_ENTAILMENT = {name: name for name in ("entailment", "not_entailment")}
GLUE = {
    "cola": _Glue("CoLA.tsv", _two("unacceptable", "acceptable")),
    "sst2": _Glue("SST-2.tsv", _two("negative", "positive")),
    "mrpc": _Glue("MRPC.tsv", _two("not_equivalent", "equivalent")),
    "stsb": _Glue("STS-B.tsv", None),
    "qqp": _Glue("QQP.tsv", _two("not_duplicate", "duplicate")),
    "mnli_matched": _Glue("MNLI-m.tsv", _THREE),
    "mnli_mismatched": _Glue("MNLI-mm.tsv", _THREE),
    "qnli": _Glue("QNLI.tsv", _ENTAILMENT),
    "rte": _Glue("RTE.tsv", _ENTAILMENT),
    "wnli": _Glue("WNLI.tsv", _two("not_entailment", "entailment")),
    "ax": _Glue("AX.tsv", _THREE),
}
STSB_RANGE = (0.0, 5.0)


def write_submission(kind: str, predictions: Any, path: str) -> epath.Path:
    """Write the file of ``kind`` into the folder ``path``, whole or not at all, and return the file's path.

    The kinds and their predictions:
      A GLUE task (cola, sst2, mrpc, stsb, qqp, mnli_matched, mnli_mismatched, qnli, rte, wnli, ax): one prediction for
        each test row, in order, or a dict from row indices (or ids that end with the index, ``test-7``) to predictions.
        Labels are names, or 0 and 1; for stsb they are numbers.
      "squad": question id -> text ("" for no answer); the file is ``predictions.json``.
      "squad_null_odds": question id -> score; the file is ``null_odds.json``.
      "conll": for each sentence, columns of equal length (words, ..., true tags, predicted tags); the file is
        ``conll.txt``.

    Raises ``UserError`` for an unknown kind and for predictions that the benchmark would refuse.
    """
    known = {**dict.fromkeys(GLUE, _glue), **OTHERS}
    name, text = choose("kind of submission", kind, known)(kind, predictions)
    target = files.as_path(path) / name
    files.write_text(target, text)
    return target


def needed_for(kind: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return which of our tasks can fill a submission of ``kind``, and which labels it accepts (() if it accepts any).

    Raises ``UserError`` for an unknown kind.
    """
    others = {"squad": ("span_qa",), "squad_null_odds": ("span_qa",), "conll": ("tagging", "feature_tagging")}
    known = {**dict.fromkeys(GLUE, ("classification",)), "stsb": ("regression",), **others}
    tasks = choose("kind of submission", kind, known)
    spelling = GLUE[kind].spelling if kind in GLUE else None
    return tasks, tuple(spelling or ())


def _glue(kind: str, predictions: Sequence[Any] | Mapping[Any, Any]) -> tuple[str, str]:
    task, rows = GLUE[kind], _in_order(predictions)
    spelled = [_score(row) if task.spelling is None else task.spelling.get(str(row)) for row in rows]
    wrong = [i for i, label in enumerate(spelled) if label is None]
    if wrong:
        allowed = "finite numbers" if task.spelling is None else ", ".join(task.spelling)
        raise UserError(
            f"{len(wrong)} predictions of {kind} cannot be submitted, such as {rows[wrong[0]]!r} (row {wrong[0]}); "
            f"allowed: {allowed}"
        )
    return task.file, "index\tprediction\n" + "".join(f"{i}\t{label}\n" for i, label in enumerate(spelled))


def _in_order(predictions: Sequence[Any] | Mapping[Any, Any]) -> list[Any]:
    """Return the predictions in the order of the rows, which count from 0.

    Raises ``UserError`` if a row is missing or appears twice, or an id holds no row number.
    """
    if not isinstance(predictions, Mapping):
        return list(predictions)
    matches = {key: re.fullmatch(r"(?:.*-)?(\d+)", str(key)) for key in predictions}
    unnumbered = [key for key, match in matches.items() if match is None]
    if unnumbered:
        raise UserError(f"{len(unnumbered)} ids of predictions hold no row number, such as {unnumbered[0]!r}")
    by_row = {int(match[1]): predictions[key] for key, match in matches.items() if match}
    if sorted(by_row) != list(range(len(predictions))):
        raise UserError(
            f"{len(predictions)} predictions are of {len(by_row)} rows from {min(by_row)} to {max(by_row)}; GLUE wants "
            "each row of the test file once, from 0"
        )
    return [by_row[row] for row in range(len(by_row))]


def _score(value: Any) -> str | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    low, high = STSB_RANGE
    return f"{min(max(number, low), high):.3f}" if math.isfinite(number) else None


def _squad(kind: str, predictions: Mapping[str, str]) -> tuple[str, str]:
    wrong = [key for key, text in predictions.items() if not isinstance(text, str)]
    if wrong:
        raise UserError(f"{len(wrong)} answers are not text, such as that of {wrong[0]!r}; give '' for no answer")
    return "predictions.json", _json(predictions)


def _null_odds(kind: str, predictions: Mapping[str, float]) -> tuple[str, str]:
    odds = {key: float(value) for key, value in predictions.items()}
    wrong = [key for key, value in odds.items() if not math.isfinite(value)]
    if wrong:
        raise UserError(f"{len(wrong)} null odds are not finite, such as that of {wrong[0]!r}")
    return "null_odds.json", _json(odds)


def _conll(kind: str, predictions: Sequence[Sequence[Sequence[str]]]) -> tuple[str, str]:
    blocks = []
    for number, columns in enumerate(predictions):
        if len({len(column) for column in columns}) > 1:
            raise UserError(f"sentence {number} has columns of {', '.join(str(len(c)) for c in columns)} rows")
        wrong = [field for column in columns for field in column if not field or re.search(r"\s", field)]
        if wrong:
            raise UserError(f"sentence {number} holds {wrong[0]!r}; a column of CoNLL is neither empty nor has spaces")
        blocks.append("".join(" ".join(row) + "\n" for row in zip(*columns, strict=True)))
    return "conll.txt", "\n".join(blocks)


def _json(values: Mapping[str, Any]) -> str:
    return json.dumps(dict(values), ensure_ascii=False, indent=1) + "\n"


OTHERS: dict[str, Callable[[str, Any], tuple[str, str]]] = {
    "squad": _squad,
    "squad_null_odds": _null_odds,
    "conll": _conll,
}
