"""Compares the scores of variants, over several seeds, with the scores of the first variant.

The verdict on a difference is "shown" or "not shown".
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

NOTE = (
    "Spread is the standard deviation over seeds (n - 1). The difference is to the first row, its standard error"
    " that of two independent means (Welch). A difference of at most two standard errors is not shown, nor one of fewer"
    " than two seeds."
)


@dataclasses.dataclass(frozen=True)
class VariantSummary:
    """A row of the table: the scores of one variant.

    ``spread`` and ``standard_error`` are None if there is only one seed. ``difference`` and ``standard_error`` compare
    with the first variant, and are None for the first variant itself.
    """

    variant: str
    seeds: int
    mean: float
    spread: float | None  # standard deviation over seeds, with denominator n - 1
    difference: float | None  # the mean minus the first variant's mean
    standard_error: float | None  # of ``difference``

    @property
    def shown(self) -> bool | None:
        """Whether the difference is larger than two standard errors; None for the first variant."""
        if self.difference is None:
            return None
        if self.standard_error is None:
            return False
        return abs(self.difference) > 2 * self.standard_error


def compare(scores: Mapping[str, Sequence[float]]) -> tuple[VariantSummary, ...]:
    """Return one table row per variant, which compares its scores with those of the first variant.

    ``scores`` maps each variant to a non-empty list with one score per seed. The standard error treats the runs as
    independent. In fact all variants use the same seeds, and runs with the same seed start with similar batches, so the
    true error of a difference may be smaller. This is not corrected, because it is hard to estimate from few seeds.
    """
    rows: list[VariantSummary] = []
    for variant, values in scores.items():
        mean, spread = statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None
        first = rows[0] if rows else None
        error = None
        if first and first.spread is not None and spread is not None:
            error = math.sqrt(first.spread**2 / first.seeds + spread**2 / len(values))
        difference = mean - first.mean if first else None
        rows.append(VariantSummary(variant, len(values), mean, spread, difference, error))
    return tuple(rows)


def by_metric(results: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, dict[str, list[float]]]:
    """Return {metric: {variant: [scores]}} from {variant: [metrics of each seed]}.

    The entry of a metric leaves out the variants that do not have the metric.
    """
    names = dict.fromkeys(name for runs in results.values() for run in runs for name in run)
    scores: dict[str, dict[str, list[float]]] = {}
    for name in names:
        having = {variant: [run[name] for run in runs if name in run] for variant, runs in results.items()}
        scores[name] = {variant: values for variant, values in having.items() if values}
    return scores


HEAD = ("variant", "seeds", "mean", "spread", "difference", "standard error", "")


def cells(rows: Sequence[VariantSummary], digits: int = 4) -> list[tuple[str, ...]]:
    """Return the rows as text, for columns with the headings ``HEAD``."""

    def number(value: float | None, sign: str = "") -> str:
        return "" if value is None else f"{value:{sign}.{digits}f}"

    verdicts = {None: "", True: "shown", False: "not shown"}
    return [
        (
            row.variant,
            str(row.seeds),
            number(row.mean),
            number(row.spread),
            number(row.difference, "+"),
            number(row.standard_error),
            verdicts[row.shown],
        )
        for row in rows
    ]


def markdown(tables: Mapping[str, Sequence[VariantSummary]], title: str) -> str:
    """Return a Markdown page with one table per metric."""
    parts = [f"# {title}", NOTE]
    for metric, rows in tables.items():
        lines = [f"| {' | '.join(HEAD)} |", "|---|" + "---:|" * (len(HEAD) - 2) + "---|"]
        lines += [f"| {' | '.join(line)} |" for line in cells(rows)]
        parts += [f"## {metric}", "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def as_data(tables: Mapping[str, Sequence[VariantSummary]]) -> dict[str, list[dict[str, Any]]]:
    """Return the tables as plain data that JSON can hold."""
    return {metric: [dataclasses.asdict(row) | {"shown": row.shown} for row in rows] for metric, rows in tables.items()}
