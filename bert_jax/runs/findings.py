"""The table that ``bert-jax preflight`` and ``bert-jax doctor`` print: a line for each thing that was looked at."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Finding:
    """A line of the table. ``verdict`` is "ok", "slow", "note" or "bad"; if any is "bad", nothing should be started."""

    name: str
    found: str
    verdict: str = "ok"
    advice: str = ""


def table(findings: Sequence[Finding], refused: str = "do not start") -> str:
    """Return the findings as a table for the terminal. Its last line is the verdict: ready, or ``refused`` and why."""
    width = max(len(finding.name) for finding in findings)
    lines = []
    for finding in findings:
        advice = f"; {finding.advice}" if finding.advice else ""
        lines.append(f"{finding.verdict:<5} {finding.name:<{width}}  {finding.found}{advice}")
    bad = [finding.name for finding in findings if finding.verdict == "bad"]
    lines.append(f"verdict: {f'{refused}: ' + ', '.join(bad) if bad else 'ready'}")
    return "\n".join(lines)
