"""The log windows of a run in which it trained steadily, from which its step time is known."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from bert_jax.reporting.formats import is_number
from bert_jax.reporting.loggers.base import Record


@dataclasses.dataclass(frozen=True)
class Pace:
    """The steady log windows of a phase. ``phase`` is "" in a run of one phase."""

    phase: str
    records: tuple[Record, ...]
    steps: int  # of most windows: the median

    def percentile(self, percent: float, metric: str = "step_seconds") -> float | None:
        """Return the value of ``metric`` below which ``percent`` % of the windows lie; None if no window has one.

        Between two windows it is interpolated linearly.
        """
        values = [record[metric] for record in self.records if is_number(record.get(metric))]
        return float(np.percentile(values, percent)) if values else None


def paces(records: Iterable[Record], run: Mapping[str, Any]) -> list[Pace]:
    """Return the steady windows of each phase, in the order of the phases; those without a step time are left out.

    The first window after a start, and the first of a phase, are not steady: caches are cold in them, and a window may
    hold steps of two phases.

    Args:
      records: those of ``metrics.jsonl``.
      run: the content of ``run.json``, which has the restarts.
    """
    train = [record for record in records if record["split"] == "train"]
    starts = [0, *(r["step"] for r in run.get("restarts") or [] if is_number(r.get("step")))]
    windows: dict[str, list[tuple[Record, int]]] = {}
    before: Record | None = None
    for record in train:
        since = before["step"] if before else 0
        first = before is None or any(since <= start < record["step"] for start in starts)
        same = before is not None and before.get("phase") == record.get("phase")
        if not first and same and is_number(record.get("step_seconds")):
            windows.setdefault(str(record.get("phase", "")), []).append((record, record["step"] - since))
        before = record
    return [
        Pace(phase, tuple(record for record, _ in of), round(statistics.median(steps for _, steps in of)))
        for phase, of in windows.items()
    ]
