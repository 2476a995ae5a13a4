"""Formats bytes and seconds as text."""

from __future__ import annotations


def size(count: float) -> str:
    """Return a number of bytes as text, such as ``1.50 GiB``."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= scale:
            return f"{count / scale:.2f} {unit}"
    return f"{count:.0f} B"


def duration(seconds: float) -> str:
    """Return seconds as text with three figures or more: ``2.50 days``, ``3.10 hours``, ``40.0 s``, ``0.0123 s``."""
    for unit, scale in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= scale:
            return f"{seconds / scale:.2f} {unit}"
    return f"{seconds:#.3g} s"
