"""Compares the scores of variants over seeds with the scores of the first: which differences exceed the noise."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from scipy import special

from bert_jax.experiments.nouns import VariantSummary

_INSIDE = 0.95  # the share of differences that lie within the noise if nothing differs


def compare(
    scores: Mapping[str, Sequence[float]],
    measures: Mapping[str, Any] | None = None,
    references: Mapping[str, str] | None = None,
) -> list[VariantSummary]:
    """Return a summary for each variant, which compares its scores with the scores of the first variant.

    The standard error treats the runs as independent. In fact all variants use the same seeds, and runs with the same
    seed start with similar batches, so the true error of a difference may be smaller. This is not corrected, because it
    is hard to estimate from few seeds.

    Args:
      scores: variant -> a non-empty list with one score per seed.
      measures: variant -> plain data that says what its scores measure. Variants with different data are not compared.
        If None, all variants measure the same thing.
      references: variant -> the variant with which it is compared, if that is not the first.
    """
    rows: dict[str, VariantSummary] = {}
    for variant, values in scores.items():
        mean, spread = statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None
        rows[variant] = VariantSummary(variant, len(values), mean, spread)
    first, *others = rows.values()
    return [
        first,
        *(_beside(rows.get((references or {}).get(row.variant, ""), first), row, measures) for row in others),
    ]


def _beside(reference: VariantSummary, row: VariantSummary, measures: Mapping[str, Any] | None) -> VariantSummary:
    """Return ``row`` with its comparison with ``reference``."""
    if measures is not None and measures[row.variant] != measures[reference.variant]:
        return dataclasses.replace(row, reference=reference.variant)
    error, noise = _errors(reference, row)
    bars = None if reference.bar is None or row.bar is None else reference.bar + row.bar
    difference = row.mean - reference.mean
    return dataclasses.replace(
        row, difference=difference, standard_error=error, noise=noise, bars=bars, reference=reference.variant
    )


def _errors(a: VariantSummary, b: VariantSummary) -> tuple[float | None, float | None]:
    """Return the standard error and the noise of the difference of two means (Welch 1947)."""
    if a.spread is None or b.spread is None:
        return None, None
    x, y = a.spread**2 / a.seeds, b.spread**2 / b.seeds
    freedom = float(min(a.seeds, b.seeds) - 1)
    if x + y > 0:
        freedom = (x + y) ** 2 / (x**2 / (a.seeds - 1) + y**2 / (b.seeds - 1))
    error = math.sqrt(x + y)
    return error, error * float(special.stdtrit(freedom, (1 + _INSIDE) / 2))
