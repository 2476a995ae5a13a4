"""Writes predictions as benchmarks accept them: GLUE's TSV files and SQuAD's JSON."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from etils import epath

from bert_jax.configuration import choose
from bert_jax.errors import UserError
from bert_jax.storage import files


class _Submission(NamedTuple):
    """A file for a benchmark: its name, the task that can fill it, and a dict: our label -> the label in the file."""

    file: str
    spelling: dict[str, str] | None = None  # None if predictions are no labels
    task: str = "classification"


def _two(negative: str, positive: str) -> dict[str, str]:
    return {"0": "0", "1": "1", negative: "0", positive: "1"}  # our labels are names as in TFDS, or 0 and 1


_THREE = {name: name for name in ("entailment", "neutral", "contradiction")}
_ENTAILMENT = {name: name for name in ("entailment", "not_entailment")}
SUBMISSIONS = {  # those of GLUE are for gluebenchmark.com
    "cola": _Submission("CoLA.tsv", _two("unacceptable", "acceptable")),
    "sst2": _Submission("SST-2.tsv", _two("negative", "positive")),
    "mrpc": _Submission("MRPC.tsv", _two("not_equivalent", "equivalent")),
    "stsb": _Submission("STS-B.tsv", task="regression"),
    "qqp": _Submission("QQP.tsv", _two("not_duplicate", "duplicate")),
    "mnli_matched": _Submission("MNLI-m.tsv", _THREE),
    "mnli_mismatched": _Submission("MNLI-mm.tsv", _THREE),
    "qnli": _Submission("QNLI.tsv", _ENTAILMENT),
    "rte": _Submission("RTE.tsv", _ENTAILMENT),
    "wnli": _Submission("WNLI.tsv", _two("not_entailment", "entailment")),
    "ax": _Submission("AX.tsv", _THREE),
    "squad": _Submission("predictions.json", task="span_qa"),
    "squad_null_odds": _Submission("null_odds.json", task="span_qa"),
}
STSB_RANGE = (0.0, 5.0)


def find(kind: str) -> _Submission:
    """Return the submission called ``kind``. Raises ``UserError`` for an unknown kind."""
    return choose("kind of submission", kind, SUBMISSIONS)


def write_submission(kind: str, predictions: Mapping[str, Any], path: str) -> epath.Path:
    """Write the file of ``kind`` into the folder ``path``, whole or not at all, and return the file's path.

    Args:
      kind: a GLUE task (cola, sst2, mrpc, stsb, qqp, mnli_matched, mnli_mismatched, qnli, rte, wnli, ax), "squad" or
        "squad_null_odds".
      predictions: for GLUE, id -> label, where the id ends with the row's number (``test-7``) and labels are names, or
        0 and 1 (for stsb they are numbers); for squad, question id -> text ("" for no answer), or -> null odds.

    Raises ``UserError`` for an unknown kind and for predictions that the benchmark would refuse.
    """
    submission = find(kind)
    if submission.task == "span_qa":
        wrong = [name for name, value in predictions.items() if isinstance(value, float) and not math.isfinite(value)]
        if wrong:
            raise UserError(f"{len(wrong)} null odds are not finite, such as that of {wrong[0]!r}")
        text = json.dumps(dict(predictions), ensure_ascii=False, indent=1) + "\n"
    else:
        text = _glue(kind, submission.spelling, _in_order(predictions))
    target = files.as_path(path) / submission.file
    files.write_text(target, text)
    return target


def _glue(kind: str, spelling: Mapping[str, str] | None, rows: Sequence[Any]) -> str:
    spelled = [_score(row) if spelling is None else spelling.get(str(row)) for row in rows]
    wrong = [i for i, label in enumerate(spelled) if label is None]
    if wrong:
        allowed = "finite numbers" if spelling is None else ", ".join(spelling)
        raise UserError(
            f"{len(wrong)} predictions of {kind} cannot be submitted, such as {rows[wrong[0]]!r} (row {wrong[0]}); "
            f"allowed: {allowed}"
        )
    return "index\tprediction\n" + "".join(f"{i}\t{label}\n" for i, label in enumerate(spelled))


def _in_order(predictions: Mapping[str, Any]) -> list[Any]:
    """Return the predictions in the order of the rows, which count from 0.

    Raises ``UserError`` if a row is missing or appears twice, or an id holds no row number.
    """
    matches = {key: re.fullmatch(r"(?:.*-)?(\d+)", key) for key in predictions}
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


def _score(value: float) -> str | None:
    low, high = STSB_RANGE
    return f"{min(max(value, low), high):.3f}" if math.isfinite(value) else None
