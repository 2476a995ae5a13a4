"""Formats numbers for people, in the same way on the progress line, in the status and in the report."""

from __future__ import annotations

import math
from typing import TypeGuard

from bert_jax.program import MISSING


def is_number(value: object) -> TypeGuard[float]:
    """Return whether ``value`` is a finite number. A bool is not a number here.

    An integer of more than 63 bits does not count either: no run writes one, and it may not fit into a float.
    """
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63


def count(value: float | None) -> str:
    """Return a number with three significant digits: ``950``, ``12.3k``, ``4.56M``, ``1.2G``."""
    if value is None or not math.isfinite(value):
        return MISSING
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * size:
            return f"{value / size:.{_decimals(value / size)}f}{unit}"
    return f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def _decimals(value: float) -> int:
    return 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0


def figure(value: object, digits: int = 3) -> str:
    """Return a measured value with ``digits`` decimals, in scientific notation if it is small.

    A missing value becomes a dash.
    """
    if not is_number(value):
        return MISSING
    if value and abs(value) < 10.0**-digits:
        return f"{value:.2e}"
    return f"{value:,.{digits}f}"


def short_time(seconds: float | None) -> str:
    """Return the time of a step or a product with three significant digits: ``105 ms``, ``4.2 s``."""
    if seconds is None:
        return MISSING
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def in_words(metric: str) -> str:
    """Return a metric's name for display: ``mlm_loss/old_text`` becomes ``mlm loss/old_text``.

    The text after the slash stays as it is: a user gave this name to a part of a mixture or to a split.
    """
    name, slash, part = metric.partition("/")
    return name.replace("_", " ") + slash + part


def phase_label(name: str) -> str:
    """Return a phase's name for display: ``128`` becomes ``phase 128``, while ``phase1`` stays as it is."""
    return name if name.startswith("phase") else f"phase {name}"
