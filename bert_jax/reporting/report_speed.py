"""The sections of ``report.html`` on how fast a run was, and on where its time went."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from html import escape
from typing import Any

from bert_jax.program import MISSING, duration
from bert_jax.reporting import status
from bert_jax.reporting.formats import count, is_number, phase_label, short_time
from bert_jax.reporting.pace import Pace
from bert_jax.reporting.page import table

PERCENTILES = (50, 90, 99)
MEASURED = (
    "Steps run asynchronously, so single steps have no times: a window of the log ends when its last step is done, and "
    "its step time is the mean of its steps, waiting for input included. Evaluations, saves, compilations, the first "
    "window after a start and the first of a phase are left out. MFU: the FLOPs of the model's matrix products (forward"
    " and backward, with padding, without recomputation), divided by the time of the steps and by the peak rate of all "
    "devices (of the data sheet, or for a device without one that of a product of the model's dtype, bfloat16 or "
    "float32, measured at the start)."
)


def step_times(phases: list[Pace]) -> str:
    """Return the table of step times, speed and MFU of each phase; "" if no window is known."""
    rows = [
        [
            phase_label(windows.phase) if windows.phase else "all steps",
            f"{len(windows.records):,} of {windows.steps:,} step{'s' * (windows.steps != 1)}",
            *(short_time(windows.percentile(percent)) for percent in PERCENTILES),
            count(windows.percentile(50, "tokens_per_second")),
            MISSING if (mfu := windows.percentile(50, "mfu")) is None else f"{mfu:.1%}",
        ]
        for windows in phases
    ]
    if not rows:
        return ""
    head = ["", "windows", *(f"step time p{percent}" for percent in PERCENTILES), "tokens a second p50", "MFU p50"]
    return f'<div class="card">{table(head, rows)}<p class="small soft">{escape(MEASURED)}</p></div>'


def goodput(state: Mapping[str, Any]) -> str:
    """Return how the time of a run is divided, and its goodput: the share that is training. "" if nothing is known."""
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
