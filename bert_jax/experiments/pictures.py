"""Draws what the tables of an ablation or a sweep say: curves over a number, else bars, with two standard errors."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from bert_jax.errors import UserError
from bert_jax.parts.own_code import at
from bert_jax.reporting.formats import figure as rounded
from bert_jax.reporting.formats import is_number
from bert_jax.reporting.loggers.base import flatten
from bert_jax.runs import key_names

if TYPE_CHECKING:
    from bert_jax.experiments.table import VariantSummary

OF_STEP = re.compile(r"(?P<task>.+)@(?P<step>[0-9]+)/(?P<metric>.+)")  # a metric of a checkpoint that was fine-tuned
LAST_NUMBER = re.compile(r"_?[0-9]+(\.[0-9]+)?(?=[^0-9]*$)")
OTHER = "another measure"
FAR = 1.0  # a baseline is drawn as a line if it is no further off than so many times the range of the values


class Over(NamedTuple):
    """A number that tells variants apart: a key of their configs, and its value in each."""

    key: str
    values: Mapping[str, float]

    @property
    def curves(self) -> dict[str, list[str]]:
        """The variants whose names are alike but for a last number, by what is alike: ``rate`` for ``rate_20``."""
        alike: dict[str, list[str]] = {}
        for variant in self.values:
            alike.setdefault(LAST_NUMBER.sub("", variant) or self.key, []).append(variant)
        return {name if len(names) > 1 else names[0]: names for name, names in alike.items()}

    def check_curves(self) -> None:
        """Raise ``UserError`` if two variants would stand at one place of one curve."""
        for name, variants in self.curves.items():
            places: dict[float, str] = {}
            for variant in variants:
                if (other := places.setdefault(self.values[variant], variant)) != variant:
                    raise UserError(
                        f"--over={self.key} would put {other} and {variant} at one place of the curve {name!r}: "
                        "variants whose names differ only in their last number make a curve. Compare fewer variants, "
                        "rename them, or leave --over out"
                    )

    @property
    def references(self) -> dict[str, str]:
        """Variant of any curve but the first -> that of the first curve at the same place, with which to compare it."""
        first, *others = self.curves.values()
        places = {self.values[variant]: variant for variant in reversed(first)}
        every = [variant for names in others for variant in names]
        return {variant: places[self.values[variant]] for variant in every if self.values[variant] in places}


def read_over(key: str, configs: Mapping[str, Any]) -> Over | None:
    """Return the values of ``--over=key`` in the configs of all variants; None if ``key`` is "".

    Raises ``UserError`` for a value that is no number.
    """
    values = {name: at(config, key_names.full(key, config)) for name, config in configs.items()} if key else {}
    if key and all(value is None for value in values.values()):
        known = sorted({one for config in configs.values() for one in flatten(config)})
        close = "".join(f"; did you mean {one!r}?" for one in difflib.get_close_matches(key, known, n=1))
        raise UserError(f"--over={key} is a key that no variant sets{close}")
    for name, value in values.items():
        if not is_number(value):
            found = "does not set it" if value is None else f"has {value!r}"
            raise UserError(
                f"--over={key} needs a number in every variant, and {name} {found}; set one in its recipe, leave the "
                "variant out, or name another key"
            )
    return Over(key, values) if key else None


@dataclasses.dataclass(frozen=True)
class Figure:
    """A chart of one metric: curves over ``x_name``, or bars if that is "".

    Attributes:
      axis: what is measured, and whether higher or lower is better.
      series: the name of a curve -> its (x, summary). Bars are one series, and have no x.
      baselines: name -> what is reached without learning.
    """

    title: str
    axis: str
    series: Mapping[str, Sequence[tuple[float, VariantSummary]]]
    x_name: str = ""
    note: str = ""
    baselines: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def rows(self) -> list[VariantSummary]:
        return [row for points in self.series.values() for _, row in points]

    @property
    def xs(self) -> list[float]:
        return sorted({x for points in self.series.values() for x, _ in points})

    @property
    def reach(self) -> tuple[float, float]:
        """The lowest and the highest end of an error bar."""
        return min(row.mean - (row.bar or 0) for row in self.rows), max(row.mean + (row.bar or 0) for row in self.rows)

    @property
    def lines(self) -> tuple[tuple[str, float], ...]:
        """The baselines that are drawn, not so far off that they would flatten all else."""
        low, high = self.reach
        far = FAR * (high - low) or abs(high) or 1.0
        return tuple((name, value) for name, value in self.baselines.items() if low - far <= value <= high + far)

    @property
    def _first(self) -> Sequence[tuple[float, VariantSummary]]:
        """The points of the first curve."""
        return next(iter(self.series.values()))

    @property
    def sentences(self) -> list[str]:
        """What stands under the chart."""
        said = [self.note[:1].upper() + self.note[1:]] if self.note else []
        for name, points in self.series.items() if self.x_name else ():
            places: dict[tuple[str, str], list[str]] = {}  # (word, with what it is compared) -> places
            for x, row in points:
                at_same_place = any((x, row.reference) == (other, one.variant) for other, one in self._first)
                other = next(iter(self.series)) if at_same_place else str(row.reference)
                if word := word_of(row):
                    places.setdefault((word, other), []).append(f"{x:,.10g}")
            for (word, other), xs in places.items():
                what, _, why = word.partition(": ")
                said.append(
                    f"{name}: not shown to differ from {other} at {', '.join(xs)}: {why}"
                    if why
                    else f"{name}: {what} at {', '.join(xs)}, not compared"
                )
        if self.baselines:
            values = ", ".join(f"{name} {rounded(value)}" for name, value in self.baselines.items())
            said.append(f"Without learning: {values}")
        return [f"{sentence}." for sentence in said]


def figure(
    title: str, better: str, series: Mapping[str, Sequence[tuple[float, VariantSummary]]], **options: Any
) -> Figure:
    """Return the chart of a metric, of bars if its points have fewer than two places along x."""
    chart = Figure(title, f"{title.partition(' at ')[0]}, {better}", series, **options)
    if len(chart.xs) > 1 and chart.x_name:
        return chart
    return dataclasses.replace(chart, x_name="", series={"": [(0.0, row) for row in chart.rows]})


def of_metrics(
    tables: Mapping[str, Sequence[VariantSummary]],
    lines: Mapping[str, str],
    baselines: Mapping[str, Mapping[str, float]],
    over: Over | None,
) -> list[Figure]:
    """Return the charts of an ablation: one a metric, and one for all steps at which a metric was measured.

    Args:
      lines: metric -> what it is, and whether lower or higher is better.
    """
    groups: dict[str, dict[str, float]] = {}  # title -> metric -> step
    for metric in tables:
        found = OF_STEP.fullmatch(metric)
        title, step = (f"{found['task']}/{found['metric']}", float(found["step"])) if found else (metric, 0.0)
        groups.setdefault(title, {})[metric] = step
    figures = []
    for title, steps in groups.items():
        first = next(iter(steps))
        series: dict[str, list[tuple[float, VariantSummary]]] = {}
        if len(steps) == 1 and over:
            x_name = over.key
            for name, variants in over.curves.items():
                points = [(over.values[row.variant], row) for row in tables[first] if row.variant in variants]
                if points:
                    series[name] = sorted(points, key=lambda point: point[0])
        else:
            for metric, step in sorted(steps.items(), key=lambda one: one[1]):
                for row in tables[metric]:
                    series.setdefault(row.variant, []).append((step, row))
            x_name = "step"
        note, lower, _ = lines[first].replace(first.partition("/")[0], title.partition("/")[0]).partition("; lower is")
        note, better = note.partition("; higher is")[0], f"{'lower' if lower else 'higher'} is better"
        figures.append(figure(title, better, series, x_name=x_name, note=note, baselines=baselines[first]))
    return figures


def word_of(row: VariantSummary) -> str:
    """Return what stands beside a value that is not shown to differ, or not compared."""
    if row.reference and row.difference is None:
        return OTHER
    return f"not shown: {row.doubt}" if row.shown is False else ""


def kind_of(row: VariantSummary) -> str:
    """Return how a bar or a point looks: as a reference, as what is not shown, as another measure, or plain ("")."""
    return "other" if word_of(row) == OTHER else "doubt" if row.doubt else "" if row.reference else "reference"
