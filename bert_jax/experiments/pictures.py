"""The figures of an ablation or a sweep: curves over a number, else bars, with two standard errors."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bert_jax.errors import UserError
from bert_jax.experiments.nouns import MetricColumn, Tables, VariantSummary
from bert_jax.reporting.error_bars import Figure, Mark
from bert_jax.reporting.formats import figure, is_number

_Points = Sequence[tuple[float, VariantSummary]]  # (x, summary)
_Curves = Mapping[str, _Points]  # the name of a curve -> its points
_LAST_NUMBER = re.compile(r"_?[0-9]+(\.[0-9]+)?(?=[^0-9]*$)")
_OTHER = "another measure"


class Over(NamedTuple):
    """A number that tells variants apart: a key of their configs, and its value in each variant."""

    key: str
    values: Mapping[str, float]

    @property
    def curves(self) -> dict[str, list[str]]:
        """Curve -> its variants, whose names differ only in the last number: ``rate`` has ``rate_20``, ``rate_30``."""
        alike: dict[str, list[str]] = {}
        for variant in self.values:
            alike.setdefault(_LAST_NUMBER.sub("", variant) or self.key, []).append(variant)
        return {name if len(names) > 1 else names[0]: names for name, names in alike.items()}

    def check_curves(self) -> None:
        """Raise ``UserError`` if two variants would stand at the same place of the same curve."""
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
        """Variant of a further curve -> its reference, the variant of the first curve at the same place."""
        first, *others = self.curves.values()
        places = {self.values[variant]: variant for variant in reversed(first)}
        every = [variant for names in others for variant in names]
        return {variant: places[self.values[variant]] for variant in every if self.values[variant] in places}


def over_numbers(key: str, values: Mapping[str, Any]) -> Over:
    """Return the x axis ``key`` with its value in each variant. Raises ``UserError`` for a value that is no number."""
    for name, value in values.items():
        if not is_number(value):
            found = "does not set it" if value is None else f"has {value!r}"
            raise UserError(
                f"--over={key} needs a number in every variant, and {name} {found}; set one in its recipe, leave the "
                "variant out, or name another key"
            )
    return Over(key, values)


def note(figures: Sequence[Figure]) -> str:
    """Return the meaning of the marks of all figures."""
    if all(mark.error is None for figure in figures for mark in figure.marks):
        return "One seed: there are no error bars, and nothing can be said of differences."
    return (
        "Error bars are two standard errors of the mean over the seeds. Pale bars and hollow points are not shown to "
        "differ from what they are compared with: the error bars overlap, or the difference is within the noise."
    )


def figure_of(title: str, better: str, curves: _Curves, x_name: str = "", column: MetricColumn | None = None) -> Figure:
    """Return the figure of a metric, of bars if its points have fewer than two places along x.

    Args:
      better: which values are better, in words.
      column: the meaning of the metric, if it is to stand under the figure.
    """
    baselines = column.baselines if column else {}
    sentences = [column.about[:1].upper() + column.about[1:]] if column else []
    if x_name and len({x for points in curves.values() for x, _ in points}) > 1:
        series = {name: [_mark(row, name, x) for x, row in points] for name, points in curves.items()}
        sentences += _doubts(curves)
    else:
        x_name, series = "", {"": [_mark(row, row.variant) for points in curves.values() for _, row in points]}
    if baselines:
        sentences.append(f"Without learning: {', '.join(f'{name} {figure(x)}' for name, x in baselines.items())}")
    axis, ended = f"{title.partition(' at ')[0]}, {better}", tuple(f"{sentence}." for sentence in sentences)
    return Figure(title, axis, series, x_name, ended, baselines)


def _mark(row: VariantSummary, name: str, x: float = 0.0) -> Mark:
    look = "other" if row.is_another_measure else "doubt" if row.doubt else "" if row.reference else "reference"
    word = _OTHER if row.is_another_measure else f"not shown: {row.doubt}" if row.shown is False else ""
    facts = [f"{row.seeds} seed{'s' * (row.seeds > 1)}"]
    if row.difference is not None:
        facts.append(f"{row.difference:+.4f} from {row.reference}")
    return Mark(name, row.mean, row.bar, x, look, word, tuple(facts))


def _doubts(curves: _Curves) -> list[str]:
    """Return sentences about points that are not shown to differ from their reference, or are not compared with it."""
    (leading, first), found = next(iter(curves.items())), list[str]()
    for name, points in curves.items():
        places: dict[tuple[str, str], list[str]] = {}  # what stands before and after the places -> the places
        for x, row in points:
            beside_first = any((x, row.reference) == (other, one.variant) for other, one in first)
            said = f"not shown to differ from {leading if beside_first else row.reference}", f": {row.doubt}"
            if row.is_another_measure:
                said = _OTHER, ", not compared"
            if row.is_another_measure or row.shown is False:
                places.setdefault(said, []).append(f"{x:,.10g}")
        found += [f"{name}: {before} at {', '.join(xs)}{after}" for (before, after), xs in places.items()]
    return found


def of_columns(columns: Mapping[str, MetricColumn], tables: Tables, over: Over | None) -> list[tuple[Figure, bool]]:
    """Return (figure, whether it shows a main metric) for each metric of an ablation.

    A metric that was measured at several steps has one figure over all of them.
    """
    groups: dict[str, list[str]] = {}  # title -> metrics
    for metric, column in columns.items():
        groups.setdefault(column.of_all_steps(metric), []).append(metric)
    figures = []
    for title, metrics in groups.items():
        first = columns[metrics[0]]
        if over and len(metrics) == 1:
            curves, x_name = _along(over, tables[metrics[0]]), over.key
        else:
            curves, x_name = _by_step({int(columns[metric].step or 0): tables[metric] for metric in metrics}), "step"
        column = dataclasses.replace(first, about=first.of_all_steps(first.about))
        figures.append((figure_of(title, first.better, curves, x_name, column), first.is_main))
    return figures


def _along(over: Over, rows: Sequence[VariantSummary]) -> dict[str, _Points]:
    """Return the curves of a metric that have a point."""
    found: dict[str, _Points] = {}
    for name, variants in over.curves.items():
        points = [(over.values[row.variant], row) for row in rows if row.variant in variants]
        if points:
            found[name] = sorted(points, key=lambda point: point[0])
    return found


def _by_step(tables: Mapping[int, Sequence[VariantSummary]]) -> dict[str, _Points]:
    """Return a curve for each variant over the steps, the keys of ``tables``."""
    found: dict[str, _Points] = {}
    for step, rows in sorted(tables.items()):
        for row in rows:
            found[row.variant] = [*found.get(row.variant, ()), (step, row)]
    return found
