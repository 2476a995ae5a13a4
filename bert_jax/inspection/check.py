"""The result of a check: one line with a verdict, the measured figure and what to do."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

Status = Literal["ok", "warn", "bad", "skip"]
_WORST_LAST: tuple[Status, ...] = ("skip", "ok", "warn", "bad")


@dataclasses.dataclass(frozen=True)
class Check:
    """The result of one check."""

    name: str  # a stable key of the JSON form
    status: Status  # "skip": it could not be checked, and ``fix`` says what was missing
    figure: str  # what was measured, for people
    fix: str = ""  # what to do; "" if nothing is wrong
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)  # what was measured, for programs
    text: tuple[tuple[str, str], ...] = ()  # pieces of the corpus itself: (label, text); empty in private mode


def grade(value: float, warn: float, bad: float) -> Status:
    """Return the status of ``value``; a limit must be exceeded to count."""
    return "bad" if value > bad else "warn" if value > warn else "ok"


def worst(statuses: Sequence[Status]) -> Status:
    """Return the most serious of ``statuses``; ``ok`` if there is none or nothing could be checked."""
    found: Status = max(statuses, key=_WORST_LAST.index, default="ok")
    return "ok" if found == "skip" else found


def percent(share: float) -> str:
    """Return a share as text: ``0 %``, ``0.003 %``, ``12.3 %``."""
    if share == 0 or share >= 0.001:
        return f"{100 * share:.1f} %"
    return f"{100 * share:.2g} %" if share >= 1e-6 else "under 0.0001 %"


def ratio(part: float, whole: float) -> float:
    """Return ``part / whole``; 0 if ``whole`` is 0."""
    return float(part) / float(whole) if whole else 0.0
