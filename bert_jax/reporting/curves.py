"""The curves of a run: one chart for each metric, for the report, and as a picture that a notebook shows."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from bert_jax.reporting import run_log
from bert_jax.reporting.chart_style import of_notebook
from bert_jax.reporting.charts import HEIGHT, LEFT, RIGHT_EDGE, WIDTH, Chart, Series, still_chart
from bert_jax.reporting.loggers.base import Record
from bert_jax.reporting.measures import (
    EXACT,
    decimals_of,
    drawn_metrics,
    known_baselines,
    metric_title,
    titles_in,
    with_shares,
)
from bert_jax.storage import files, reading

_SPLITS = {"train": "train", "eval": "held-out"}
_MOST, _COLUMNS = 4, 2  # charts of a picture, and of its rows
_TITLE_HEIGHT, _GAP = 26.0, 20.0
_SCOPE = "bert-jax"  # the class of a picture in a notebook


def charts_of(
    records: Iterable[Record],
    baselines: Mapping[str, Any],
    titles: Mapping[str, str],
    marks: tuple[tuple[str, float], ...] = (),
) -> dict[str, Chart]:
    """Return a dict: metric of ``metrics.jsonl`` -> its chart, with its baselines.

    Args:
      titles: the titles of the metrics (``titles_in``).
      marks: (name, step) for each line that marks a step.
    """
    records, charts = list(records), {}
    last = next((record for record in reversed(records) if record["split"] == "eval"), {})
    baselines = with_shares(baselines, last)
    for metric in drawn_metrics(records, titles):
        series = tuple(
            Series(name, points, split)
            for split, name in _SPLITS.items()
            if (points := [(r["step"], r.get(metric)) for r in records if r["split"] == split and metric in r])
        )
        lines = tuple(known_baselines(metric, baselines))
        noisy = metric not in EXACT
        charts[metric] = Chart(metric_title(metric, titles), series, lines, marks, decimals_of(metric, titles), noisy)
    return charts


@dataclasses.dataclass(frozen=True, repr=False)
class Curves:
    """The curves of a run. A notebook draws the curves with held-out figures; ``charts`` has all curves."""

    workdir: str
    charts: tuple[Chart, ...]

    def __repr__(self) -> str:
        return f"Curves({self.workdir!r}: {'; '.join(chart.title for chart in self.charts)})"

    def _repr_svg_(self) -> str:
        """Return ``svg()``. Notebooks call this by its name."""
        return self.svg()

    def svg(self) -> str:
        """Return an SVG of at most ``_MOST`` charts, which needs no other file."""
        heldout = [c for c in self.charts if any(series.style == "eval" for series in c.series)]
        shown = (heldout or list(self.charts))[:_MOST]
        across, down = WIDTH + _GAP, HEIGHT + _TITLE_HEIGHT + _GAP
        panels = []
        for i, chart in enumerate(shown):
            at = f"{i % _COLUMNS * across:g} {i // _COLUMNS * down:g}"
            drawn = f'<g transform="translate(0 {_TITLE_HEIGHT:g})">\n{still_chart(chart)}\n</g>'
            panels.append(f'<g transform="translate({at})">{_heading(chart)}\n{drawn}</g>')
        width, height = min(_COLUMNS, len(shown)) * across, math.ceil(len(shown) / _COLUMNS) * down
        size = f'width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" class="{_SCOPE}" {size}>'
        return "\n".join([head, f"<style>{of_notebook(_SCOPE)}</style>", *panels, "</svg>"])


def _heading(chart: Chart) -> str:
    parts, at = [f'<text class="title" x="{LEFT:g}" y="18">{escape(chart.title)}</text>'], RIGHT_EDGE
    for series in reversed(chart.series):
        parts.append(f'<text x="{at:g}" y="18" text-anchor="end">{escape(series.name)}</text>')
        at -= 7 * len(series.name) + 14
        parts.append(f'<rect class="key {series.style}" x="{at:g}" y="12" width="10" height="4"/>')
        at -= 16
    return "".join(parts)


def read_curves(workdir: str) -> Curves:
    """Return the curves of the run in ``workdir``. Raises ``UserError`` if there is no record of a run."""
    records = run_log.records_of(workdir)
    run, baselines = (
        reading.read_object(files.as_path(workdir) / f"{name}.json") or {} for name in ("run", "baselines")
    )
    return Curves(workdir, tuple(charts_of(records, baselines, titles_in(run)).values()))
