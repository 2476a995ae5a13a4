"""Draws line charts as inline SVG, without scripts or libraries. Colours are CSS variables of the page."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from html import escape

from bert_jax.reporting.formats import count, figure, is_number

_Points = Sequence[tuple[float, float | None]]

WIDTH, HEIGHT = 560.0, 270.0
LEFT, _RIGHT, _TOP, _BOTTOM = 54.0, 14.0, 20.0, 32.0
RIGHT_EDGE, _BASE = WIDTH - _RIGHT, HEIGHT - _BOTTOM  # edges of the plot
_MAX_POINTS = 1000  # a drawn curve has at most so many points
_HOVER_BANDS = 72  # at most so many places along x show their values under the pointer
_SMOOTH_FROM = 60  # curves with fewer points are not smoothed
_MOST_DOTS = 40  # lines with more points have no dots


@dataclasses.dataclass(frozen=True)
class Series:
    """A curve. It has a gap where y is None or not finite.

    ``style`` is a CSS class: ``train`` or ``eval``.
    """

    name: str
    points: _Points
    style: str


@dataclasses.dataclass(frozen=True)
class Chart:
    """Several curves over the same x axis.

    ``references`` are horizontal lines (name, y), ``marks`` are vertical lines (name, x).
    """

    title: str
    series: tuple[Series, ...]
    references: tuple[tuple[str, float], ...] = ()
    marks: tuple[tuple[str, float], ...] = ()
    digits: int = 3
    noisy: bool = True  # whether to add a moving average to long curves


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return evenly spaced round numbers in [low, high], with at most ``most`` intervals between them.

    The step is 1, 2, 2.5 or 5 times a power of ten.
    """
    if high <= low:
        return [low]
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, 12 - math.floor(math.log10(step))) for i in range(first, last + 1)]


def tick_label(value: float) -> str:
    """Return the label of a number at an axis."""
    return count(value) if abs(value) >= 1000 else f"{value:g}"


def exact_label(value: float) -> str:
    """Return a number that is not rounded, such as ``10,050``."""
    return f"{value:,.10g}"


def _thin(points: _Points) -> list[tuple[float, float | None]]:
    """Return at most ``_MAX_POINTS`` of the points.

    Of each group of neighbours, the lowest and the highest are kept, so that spikes stay visible.
    """
    if len(points) <= _MAX_POINTS:
        return list(points)
    buckets = (_MAX_POINTS - 2) // 2
    inner = points[1:-1]
    edges = [round(i * len(inner) / buckets) for i in range(buckets + 1)]
    kept = [points[0]]
    for start, stop in zip(edges, edges[1:], strict=False):
        known = [i for i in range(start, stop) if is_number(inner[i][1])] or [start]
        extremes = {min(known, key=lambda i: inner[i][1] or 0.0), max(known, key=lambda i: inner[i][1] or 0.0)}
        kept += [inner[i] for i in sorted(extremes)]
    return [*kept, points[-1]]


def _smooth(points: _Points) -> list[tuple[float, float | None]]:
    """Return a centred moving average over a thirtieth of the points; near the ends of the curve, over fewer points."""
    values = _known_points(points)
    sums = [0.0, *itertools.accumulate(y for _, y in values)]
    reach = len(values) // 60
    spans = [(max(0, i - reach), min(len(values), i + reach + 1)) for i in range(len(values))]
    means = [(sums[stop] - sums[start]) / (stop - start) for start, stop in spans]
    return [(x, mean) for (x, _), mean in zip(values, means, strict=True)]


def _known_points(points: _Points) -> list[tuple[float, float]]:
    return [(x, y) for x, y in points if is_number(y)]


@dataclasses.dataclass(frozen=True)
class Frame:
    """Maps data values to SVG coordinates; along x by their logarithms if ``log``."""

    x_range: tuple[float, float]
    y_range: tuple[float, float]
    log: bool = False

    def x(self, value: float) -> float:
        low, high = self.x_range
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return LEFT + (value - low) / (high - low or 1.0) * (RIGHT_EDGE - LEFT)

    def y(self, value: float) -> float:
        low, high = self.y_range
        return _BASE - (value - low) / (high - low or 1.0) * (_BASE - _TOP)


def chart_svg(chart: Chart) -> str:
    """Return the chart as one ``<svg>``; "" if there is nothing to draw."""
    frame = _frame(chart)
    if frame is None:
        return ""
    label = escape(f"{chart.title}: " + "; ".join(_summary(s, chart) for s in chart.series if s.points))
    lines = "\n".join([*_still(chart, frame), *_hover(chart, frame)])
    return f'<svg viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" aria-label="{label}">\n{lines}\n</svg>'


def still_chart(chart: Chart) -> str:
    """Return the elements of ``svg`` that do not react to the pointer; "" if there is nothing to draw."""
    frame = _frame(chart)
    return "" if frame is None else "\n".join(_still(chart, frame))


def _still(chart: Chart, frame: Frame) -> list[str]:
    curves = [_curve(series, frame, chart.noisy) for series in chart.series]
    return [*grid(frame), *_marks(chart, frame), *curves, *references(chart.references, frame, chart.digits)]


def _frame(chart: Chart) -> Frame | None:
    """Return the frame that holds all curves and references; None if no curve has a value."""
    values = [y for series in chart.series for _, y in _known_points(series.points)]
    xs = [x for series in chart.series for x, _ in series.points]
    return frame_around(xs, [*values, *(y for _, y in chart.references)]) if values else None


def frame_around(xs: Sequence[float], ys: Sequence[float]) -> Frame:
    """Return a frame from the lowest to the highest of ``xs``, with a margin below and above ``ys``."""
    low, high = min(ys), max(ys)
    margin = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    floor = 0.0 if low >= 0 and low - margin < 0 else low - margin
    return Frame((min(xs), max(xs) if max(xs) > min(xs) else min(xs) + 1), (floor, high + margin))


def grid(frame: Frame, xs: Sequence[float] = ()) -> list[str]:
    """Return the lines and labels of both axes. ``xs``: the places along x that get exact labels, in place of ticks."""
    elements = []
    for y, label in ((frame.y(value), tick_label(value)) for value in ticks(*frame.y_range)):
        elements.append(f'<line class="grid" {_across(y)}/>')
        elements.append(f'<text class="tick" x="{LEFT - 8:g}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    along = {x: exact_label(x) for x in xs} or {x: tick_label(x) for x in ticks(*frame.x_range)}
    for x, label in ((frame.x(value), label) for value, label in along.items()):
        at, anchor = (x, "middle") if x < RIGHT_EDGE - 14 else (RIGHT_EDGE, "end")
        elements.append(f'<text class="tick" x="{at:.1f}" y="{HEIGHT - 10:g}" text-anchor="{anchor}">{label}</text>')
    return [*elements, f'<line class="axis" {_across(_BASE)}/>']


def _across(y: float) -> str:
    return f'x1="{LEFT:g}" x2="{RIGHT_EDGE:g}" y1="{y:.1f}" y2="{y:.1f}"'


def _down(x: float, top: float = _TOP) -> str:
    return f'x1="{x:.1f}" x2="{x:.1f}" y1="{top:g}" y2="{_BASE:g}"'


def path(points: _Points, frame: Frame, style: str) -> str:
    """Return the line through the points, of the CSS class ``style``."""
    commands, pen_down = [], False
    for x, y in points:
        if is_number(y):
            commands.append(f"{'L' if pen_down else 'M'}{frame.x(x):.1f} {frame.y(y):.1f}")
        pen_down = is_number(y)
    return f'<path class="curve {style}" d="{"".join(commands)}"/>'


def _curve(series: Series, frame: Frame, noisy: bool) -> str:
    points = _thin(series.points)
    if noisy and len(points) > _SMOOTH_FROM:
        return path(points, frame, f"{series.style} raw") + path(_thin(_smooth(series.points)), frame, series.style)
    dots = _known_points(points) if len(points) <= _MOST_DOTS else []
    circles = "".join(
        f'<circle class="dot {series.style}" cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="2.4"/>' for x, y in dots
    )
    return path(points, frame, series.style) + circles


def references(lines: Sequence[tuple[str, float]], frame: Frame, digits: int = 3) -> list[str]:
    """Return horizontal lines, pairs of a name and a y, with their labels."""
    drawn, last = [], -math.inf
    for name, value in sorted(lines, key=lambda line: -line[1]):
        y = frame.y(value)
        last = y - 5 if y - 5 - last >= 14 else y + 14  # put the label under its line if the label above is too close
        drawn.append(f'<line class="reference" {_across(y)}/>')
        label = escape(f"{name} {value:.{digits}f}")
        drawn.append(f'<text class="reference" x="{RIGHT_EDGE - 4:g}" y="{last:.1f}" text-anchor="end">{label}</text>')
    return drawn


def _marks(chart: Chart, frame: Frame) -> list[str]:
    elements, free_from = [], -math.inf
    low, high = frame.x_range
    for name, value in sorted((mark for mark in chart.marks if low <= mark[1] <= high), key=lambda mark: mark[1]):
        x, width, label = frame.x(value), 6.2 * len(name), ""
        fits = x + 4 + width <= RIGHT_EDGE
        start = x + 4 if fits else x - 4 - width
        if start >= free_from:  # otherwise it would cover the label before it
            at = f'x="{x + 4 if fits else x - 4:.1f}" y="{_TOP - 8:g}" text-anchor="{"start" if fits else "end"}"'
            label, free_from = f"<text {at}>{escape(name)}</text>", start + width + 6
        title = f"<title>{escape(name)} at step {value:,.0f}</title>"
        elements.append(f'<g class="mark">{title}<line {_down(x, _TOP - 6)}/>{label}</g>')
    return elements


def _hover(chart: Chart, frame: Frame) -> list[str]:
    """Return transparent bands that cover the chart and react to the pointer.

    While the pointer is over a band, a vertical line, a dot on each curve and a tooltip with the values appear.
    """
    xs = sorted({x for series in chart.series for x, _ in _known_points(series.points)})
    xs = [xs[i * (len(xs) - 1) // (_HOVER_BANDS - 1)] for i in range(_HOVER_BANDS)] if len(xs) > _HOVER_BANDS else xs
    edges = [LEFT, *((frame.x(a) + frame.x(b)) / 2 for a, b in zip(xs, xs[1:], strict=False)), RIGHT_EDGE]
    nearest = [(series, _nearest(series.points)) for series in chart.series]
    elements = []
    for x, left, right in zip(xs, edges, edges[1:], strict=False):
        lines, dots = [f"step {x:,.10g}"], []
        for series, find in nearest:
            point = find(x)
            if point is not None:
                lines.append(f"{series.name} {_value(point[1], chart.digits)}")
                at = f'cx="{frame.x(point[0]):.1f}" cy="{frame.y(point[1]):.1f}"'
                dots.append(f'<circle class="dot {series.style}" {at} r="3.5"/>')
        title = escape("\n".join(lines))
        rect = f'<rect x="{left:.1f}" y="{_TOP:g}" width="{right - left:.1f}" height="{_BASE - _TOP:g}"/>'
        rule = f"<line {_down(frame.x(x))}/>"
        elements.append(f'<g class="hover"><title>{title}</title>{rect}{rule}{"".join(dots)}</g>')
    return elements


def _nearest(points: _Points) -> Callable[[float], tuple[float, float] | None]:
    """Return a function x -> the last known point at or before x (the first known point if there is none)."""
    known = _known_points(points)
    xs = [x for x, _ in known]
    return lambda x: known[max(0, bisect.bisect_right(xs, x) - 1)] if known else None


def _value(value: float, digits: int) -> str:
    return count(value) if abs(value) >= 10000 else figure(value, digits)


def _summary(series: Series, chart: Chart) -> str:
    known = _known_points(series.points)
    if not known:
        return f"{series.name} without a value"
    first, last = (f"{_value(y, chart.digits)} at step {x:,.0f}" for x, y in (known[0], known[-1]))
    return f"{series.name} from {first} to {last}"
