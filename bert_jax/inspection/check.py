"""Defines ``Check``, the result of a check of a corpus or a machine: verdict, measured figure, what to do."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

Status = Literal["ok", "note", "warn", "bad", "skip"]  # only checks of machines have "note"
_WORST_LAST: tuple[Status, ...] = ("skip", "ok", "note", "warn", "bad")


@dataclasses.dataclass(frozen=True)
class Check:
    """The result of one check."""

    name: str  # the key of the check in the JSON form, which never changes
    status: Status  # "skip" means that it could not be checked; then ``fix`` says what was missing
    figure: str  # what was measured, for people
    fix: str = ""  # what to do; "" if nothing is wrong
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)  # what was measured, for programs
    text: tuple[tuple[str, str], ...] = ()  # examples from the corpus: (label, text); empty in private mode

    def __post_init__(self) -> None:
        if self.status == "ok":
            object.__setattr__(self, "fix", "")


def grade(value: float, warn: float, bad: float) -> Status:
    """Return "bad" if ``value`` is above ``bad``, "warn" if it is above ``warn``, otherwise "ok"."""
    return "bad" if value > bad else "warn" if value > warn else "ok"


def worst(statuses: Sequence[Status]) -> Status:
    """Return the most serious of ``statuses``; "ok" if ``statuses`` is empty or has only "skip"."""
    status: Status = max(statuses, key=_WORST_LAST.index, default="ok")
    return "ok" if status == "skip" else status


def as_table(checks: Sequence[Check], refusal: str = "do not start") -> str:
    """Return the checks of a machine as a table. The last line says "ready", or ``refusal`` and why."""
    width = max(len(check.name) for check in checks)
    lines = [f"{c.status:<5} {c.name:<{width}}  {c.figure}{f'; {c.fix}' if c.fix else ''}" for c in checks]
    bad = [check.name for check in checks if check.status == "bad"]
    return "\n".join([*lines, f"verdict: {refusal}: {', '.join(bad)}" if bad else "verdict: ready"])


def percent(share: float) -> str:
    """Return a share as text in percent: ``0.0 %``, ``0.003 %``, ``12.3 %``."""
    if share == 0 or share >= 0.001:
        return f"{100 * share:.1f} %"
    return f"{100 * share:.2g} %" if share >= 1e-6 else "under 0.0001 %"


def ratio(part: float, whole: float) -> float:
    """Return ``part / whole``; 0 if ``whole`` is 0."""
    return float(part) / float(whole) if whole else 0.0
