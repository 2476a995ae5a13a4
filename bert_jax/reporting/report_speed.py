"""The sections of ``report.html`` on how fast a run was, and on where its time went."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from bert_jax.program import MISSING, duration
from bert_jax.reporting import status
from bert_jax.reporting.formats import count, is_number, phase_label, short_time
from bert_jax.reporting.loggers.base import Record
from bert_jax.reporting.page import table
from bert_jax.reporting.summary import as_mapping, steps_done

_PERCENTILES = (50, 90, 99)
_TOO_SHORT = "Too short to time, without a window of the log after the first (config.training.log_every_steps):"
MEASURED = (
    "Steps run asynchronously, so single steps have no times: a window of the log ends when its last step is done, and "
    "its step time is the mean of its steps, waiting for input included. Evaluations, saves, compilations, the first "
    "window after a start and the first of a phase are left out. MFU: the FLOPs of the model's matrix products (forward"
    " and backward, with padding, without recomputation), divided by the time of the steps and by the peak rate of all "
    "devices (of the data sheet; for a device without a data sheet, the rate of a product of the model's dtype, "
    "bfloat16 or float32, measured at the start)."
)


@dataclasses.dataclass(frozen=True)
class Pace:
    """The steady log windows of a phase. ``phase`` is "" in a run of one phase."""

    phase: str
    records: tuple[Record, ...]
    steps: int  # the median number of steps of a window

    def percentile(self, percent: float, metric: str = "step_seconds") -> float | None:
        """Return the value of ``metric`` below which ``percent`` % of the windows lie; None if no window has a value.

        Between two windows the value is interpolated linearly.
        """
        values = [record[metric] for record in self.records if is_number(record.get(metric))]
        return float(np.percentile(values, percent)) if values else None


def paces(records: Iterable[Record], run: Mapping[str, Any]) -> list[Pace]:
    """Return the steady windows of each phase, in the order of the phases, without windows that have no step time.

    The first window after a start, and the first of a phase, are not steady: caches are cold in them, and a window may
    hold steps of two phases.

    Args:
      records: the records of ``metrics.jsonl``.
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


def untimed_phases(records: Iterable[Record], run: Mapping[str, Any]) -> list[str]:
    """Return the labels of the phases that have begun and have no steady window: they are too short to time."""
    records = list(records)
    done = steps_done(run, max(record["step"] for record in records))
    timed = {pace.phase for pace in paces(records, run)}
    if len(done) == 1:
        timed |= set(done) if timed else set()
    return [f"{phase_label(name)} ({n:,} step{'s' * (n != 1)})" for name, n in done.items() if n and name not in timed]


def step_times(phases: list[Pace], short: Sequence[str] = ()) -> str:
    """Return the table of step times, speed and MFU of each phase; "" if nothing is known.

    ``short``: the phases that are too short to time (``untimed``).
    """
    rows = [
        [
            phase_label(windows.phase) if windows.phase else "all steps",
            f"{len(windows.records):,} of {windows.steps:,} step{'s' * (windows.steps != 1)}",
            *(short_time(windows.percentile(percent)) for percent in _PERCENTILES),
            count(windows.percentile(50, "tokens_per_second")),
            MISSING if (mfu := windows.percentile(50, "mfu")) is None else f"{mfu:.1%}",
        ]
        for windows in phases
    ]
    note = f'<p class="small soft">{escape(_TOO_SHORT)} {escape(", ".join(short))}.</p>' if short else ""
    if not rows:
        return f'<div class="card">{note}</div>' if short else ""
    head = ["", "windows", *(f"step time p{percent}" for percent in _PERCENTILES), "tokens a second p50", "MFU p50"]
    return f'<div class="card">{table(head, rows)}{note}<p class="small soft">{escape(MEASURED)}</p></div>'


def kernel_times(split: Mapping[str, Any]) -> str:
    """Return the table of the parts of a traced step's time on a GPU; "" without a trace of a GPU.

    ``split``: the content of ``profile.json``.
    """
    times = {str(kind): ms for kind, ms in as_mapping(split.get("milliseconds")).items() if is_number(ms) and ms >= 0}
    if not (total := sum(times.values())):
        return ""
    rows = [[kind, f"{ms:.3g} ms", f"{ms / total:.0%}"] for kind, ms in times.items()]
    note = (
        f"A step of the traced {split.get('steps', 'steps')}, on the first GPU: {total:.3g} ms. Communication counts "
        "where nothing else runs; idle is the time between kernels, to which a trace adds."
    )
    head = ["", "a step", "share"]
    return f'<div class="card">{table(head, rows)}<p class="small soft">{escape(note)}</p></div>'


def goodput_card(state: Mapping[str, Any]) -> str:
    """Return the division of a run's time, and the share of training (the goodput); "" if no time is known."""
    accounts = state.get("goodput") or {}
    parts = sorted(((k, v) for k, v in accounts.items() if is_number(v) and v > 0), key=lambda part: -part[1])
    if not parts:
        return ""
    total = sum(seconds for _, seconds in parts)
    bars, keys = [], []
    for (name, seconds), colour in zip(parts, itertools.cycle("abcdefghijk"), strict=False):
        share = f"{name.replace('_', ' ')} {duration(seconds)} ({seconds / total:.1%})"
        bars.append(f'<i title="{escape(share)}" style="flex:{seconds:.3f};background:var(--{colour})"></i>')
        keys.append(f'<li><i style="background:var(--{colour})"></i>{escape(share)}</li>')
    label = escape(status.goodput_line(dict(parts)))
    bar = f'<div class="split" role="img" aria-label="{label}">{"".join(bars)}</div>'
    note = (
        f"Goodput {dict(parts).get('train', 0.0) / total:.1%}: the steps that were kept, without waiting for input, of "
        f"the {duration(total)} in which the run's processes ran."
    )
    return f'<div class="card">{bar}<ul class="keys">{"".join(keys)}</ul><p class="small soft">{escape(note)}</p></div>'
