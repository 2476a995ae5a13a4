"""Compares the scores of variants, over seeds, with those of the first: which differences are beyond the noise.

The verdict on a difference is "beyond the noise" or "within the noise" (of the seeds).
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from scipy import special

SPREAD = "Cells are the mean ± the standard deviation (n - 1) over the seeds; one seed has no deviation."
NOTE = (
    "A difference is the variant's mean minus that of the first; its standard error is that of two independent means"
    " (Welch). It is beyond the noise if it exceeds the error times Student's t for 95 % and so few seeds (4.3 for two"
    " alike, 2.8 for three, 2.3 for five); where nothing differs, 1 in 20 or fewer do by chance. One seed cannot tell."
)
INSIDE = 0.95  # share of differences within the noise where nothing differs


@dataclasses.dataclass(frozen=True)
class VariantSummary:
    """The scores of one variant in one metric.

    ``difference``, ``standard_error`` and ``noise`` compare with the first variant. They are None for the first variant
    itself, and if the two measure different things. With one seed, ``spread`` and the last two are None.
    """

    variant: str
    seeds: int
    mean: float
    spread: float | None  # standard deviation over seeds, with denominator n - 1
    difference: float | None = None  # the mean minus the first variant's mean
    standard_error: float | None = None  # of ``difference``
    noise: float | None = None  # the standard error times Student's t: a larger difference is beyond the noise

    @property
    def beyond_noise(self) -> bool | None:
        """Whether the difference is beyond the noise; None if that cannot be told."""
        return None if self.difference is None or self.noise is None else abs(self.difference) > self.noise

    @property
    def verdict(self) -> str:
        return {None: "one seed: cannot tell", True: "beyond the noise", False: "within the noise"}[self.beyond_noise]


Tables = Mapping[str, Sequence[VariantSummary]]  # metric -> a summary for each variant that has it


def compare(scores: Mapping[str, Sequence[float]], measures: Mapping[str, Any] | None = None) -> list[VariantSummary]:
    """Return a summary per variant, which compares its scores with those of the first variant.

    The standard error treats the runs as independent. In fact all variants use the same seeds, and runs with the same
    seed start with similar batches, so the true error of a difference may be smaller. This is not corrected, because it
    is hard to estimate from few seeds.

    Args:
      scores: variant -> a non-empty list with one score per seed.
      measures: variant -> what its scores measure. A variant that measures something else than the first is not
        compared. If None, all measure the same.
    """
    rows: list[VariantSummary] = []
    for variant, values in scores.items():
        mean, spread = statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None
        row = VariantSummary(variant, len(values), mean, spread)
        if rows and (measures is None or measures[variant] == measures[rows[0].variant]):
            error, noise = _errors(rows[0], row)
            row = dataclasses.replace(row, difference=mean - rows[0].mean, standard_error=error, noise=noise)
        rows.append(row)
    return rows


def _errors(a: VariantSummary, b: VariantSummary) -> tuple[float | None, float | None]:
    """Return the standard error and the noise of the difference of two means (Welch 1947)."""
    if a.spread is None or b.spread is None:
        return None, None
    x, y = a.spread**2 / a.seeds, b.spread**2 / b.seeds
    freedom = float(min(a.seeds, b.seeds) - 1)
    if x + y > 0:
        freedom = (x + y) ** 2 / (x**2 / (a.seeds - 1) + y**2 / (b.seeds - 1))
    error = math.sqrt(x + y)
    return error, error * float(special.stdtrit(freedom, (1 + INSIDE) / 2))


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


Page = tuple[tuple[str, ...], list[tuple[str, ...]]]  # the heading and the rows of a table, as text


def overview(tables: Tables, baselines: Mapping[str, str]) -> Page:
    """Return the table of everything: a row per variant and a column per metric, and a row of baselines if there are.

    ``baselines`` maps a metric to what is reached without learning, as text.
    """
    variants = dict.fromkeys(row.variant for rows in tables.values() for row in rows)
    summaries = {(metric, row.variant): row for metric, rows in tables.items() for row in rows}
    lines = []
    for variant in variants:
        rows = [summaries.get((metric, variant)) for metric in tables]
        lines.append((variant, str(max(row.seeds for row in rows if row)), *map(_mean, rows)))
    if baselines:
        lines.append(("without learning", "", *(baselines.get(metric, "") for metric in tables)))
    return ("variant", "seeds", *tables), lines


def _mean(row: VariantSummary | None) -> str:
    if row is None:
        return ""
    return f"{row.mean:.4f}" + ("" if row.spread is None else f" ± {row.spread:.4f}")


def differences(tables: Tables) -> Page:
    """Return the table of differences: a row for each metric and each variant that is compared with the first."""
    lines: list[tuple[str, ...]] = []
    for metric, rows in tables.items():
        for row in rows:
            if row.difference is not None:
                error = "" if row.standard_error is None else f"{row.standard_error:.4f}"
                lines.append(
                    (metric, f"{row.variant} - {rows[0].variant}", f"{row.difference:+.4f}", error, row.verdict)
                )
    return ("metric", "variants", "difference", "standard error", "verdict"), lines


def markdown(page: Page) -> str:
    """Return a table as Markdown."""
    head, rows = page
    lines = [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def as_data(tables: Tables) -> dict[str, list[dict[str, Any]]]:
    """Return the tables as plain data that JSON can hold."""
    return {
        metric: [dataclasses.asdict(row) | {"beyond_noise": row.beyond_noise} for row in rows]
        for metric, rows in tables.items()
    }
