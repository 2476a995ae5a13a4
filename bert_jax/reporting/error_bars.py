"""Draws values with error bars as SVG, curves over a number or bars: in a page, or as a picture that stands alone."""

from __future__ import annotations

import dataclasses
import math
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from typing import NamedTuple

from bert_jax.reporting import charts
from bert_jax.reporting.chart_style import LETTERS, OF_PICTURE
from bert_jax.reporting.formats import figure as rounded
from bert_jax.reporting.page import as_html, chart_card

_LINE, _CHARACTER = 20.0, 9.6  # height of a line of text; width of a character at the font size of a narrow page
_LEFT, _RIGHT, _BAR = 8.0, 546.0, 12.0  # edges of the bars, and the height of a bar
_ACROSS, _MARGIN = 600.0, 20.0  # width of one figure in a picture, and of the space around it
_LOG_FROM = 10.0  # an axis may be logarithmic if its largest x is at least so many times its smallest
_FAR = 1.0  # a baseline is drawn as a line if its distance is at most so many times the range of the values


class Mark(NamedTuple):
    """A value with its error bar: a bar, or a point of a curve.

    Attributes:
      error: the length of the error bar to either side; None if there is none.
      look: "reference"; "doubt" (pale, hollow); "other" (dashed); or "", plain.
      word: the reason for a doubt; "" if there is none.
      facts: further texts that appear under the pointer.
    """

    name: str
    value: float
    error: float | None
    x: float = 0.0  # the place of a point
    look: str = ""
    word: str = ""
    facts: tuple[str, ...] = ()

    @property
    def low(self) -> float:
        return self.value - (self.error or 0)

    @property
    def high(self) -> float:
        return self.value + (self.error or 0)

    @property
    def text(self) -> str:
        return f"{self.value:.4f}" + ("" if self.error is None else f" ± {self.error:.4f}")


@dataclasses.dataclass(frozen=True)
class Figure:
    """A chart of values with error bars: curves over ``x_name``, or bars if that is "".

    Attributes:
      axis: the name of the values.
      series: the name of a curve -> its points. Bars are one series.
      sentences: they stand under the chart.
      baselines: name -> a value to compare with, which is drawn as a line unless it is far off.
    """

    title: str
    axis: str
    series: Mapping[str, Sequence[Mark]]
    x_name: str = ""
    sentences: tuple[str, ...] = ()
    baselines: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def marks(self) -> list[Mark]:
        return [mark for marks in self.series.values() for mark in marks]

    @property
    def reach(self) -> tuple[float, float]:
        """The lowest and the highest end of an error bar."""
        return min(mark.low for mark in self.marks), max(mark.high for mark in self.marks)

    @property
    def lines(self) -> tuple[tuple[str, float], ...]:
        """The baselines that are drawn: a baseline that is far off would flatten the values."""
        low, high = self.reach
        far = _FAR * (high - low) or abs(high) or 1.0
        return tuple((name, value) for name, value in self.baselines.items() if low - far <= value <= high + far)

    @property
    def legend(self) -> list[tuple[str, str]]:
        """The name and the colour of each curve."""
        colours = ["train", "eval"] if len(self.series) < 3 else LETTERS
        return [(name, f"var(--{colours[i % len(colours)]})") for i, name in enumerate(self.series)]


def section(figures: Sequence[Figure], note: str) -> str:
    """Return the charts as a part of a page. ``note``: the meaning of the marks of all charts."""
    cards = []
    for chart in figures:
        drawn, height = _drawn(chart)
        drawing = f'<svg viewBox="0 0 {charts.WIDTH:g} {height:g}">\n{drawn}\n</svg>'
        below = f'<p class="small soft">{"<br>".join(map(as_html, chart.sentences))}</p>'
        cards.append(chart_card(chart.title, chart.legend if len(chart.series) > 1 else (), drawing, below))
    one = ' style="grid-template-columns:minmax(0,720px)"' if len(cards) == 1 else ""
    return f'<p class="soft">{note}</p>\n<div class="charts"{one}>\n' + "\n".join(cards) + "\n</div>"


def picture(title: str, figures: Sequence[Figure], note: str) -> str:
    """Return all charts as one SVG with a background, which needs no other file."""
    panels, across = [_panel(chart) for chart in figures], min(2, len(figures))
    width = across * (_ACROSS + _MARGIN) + _MARGIN
    head = [*_lines([title], 40, "title", width)]
    head += _lines([note], 44 + _LINE * len(head), "", width)
    parts, y = list[str](), 44 + _LINE * len(head)
    for i in range(0, len(panels), across):
        row = panels[i : i + across]
        height = max(height for _, height in row) + 8
        for j, (drawn, _) in enumerate(row):
            x = _MARGIN + j * (_ACROSS + _MARGIN)
            card = f'<rect class="card" width="{_ACROSS:g}" height="{height:g}" rx="12"/>'
            parts.append(f'<g transform="translate({x:g} {y:g})">{card}\n{drawn}</g>')
        y += height + _MARGIN
    size = f'width="{width:g}" height="{y:g}" viewBox="0 0 {width:g} {y:g}"'
    back = f'<rect width="{width:g}" height="{y:g}" fill="var(--page)"/>'
    begin = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n<title>{escape(title)}</title>'
    return "\n".join([begin, f"<style>{OF_PICTURE}</style>", back, *head, *parts, "</svg>\n"])


def _panel(chart: Figure) -> tuple[str, float]:
    """Return a figure of a picture, with its title, legend and sentences, and its height."""
    parts = list(_lines([chart.title], 32, "title"))
    x, y = _MARGIN, 38 + _LINE * len(parts)
    if len(chart.series) > 1:
        for name, colour in chart.legend:
            width = _CHARACTER * len(name) + 40
            x, y = (x, y) if x + width <= _ACROSS - _MARGIN or x == _MARGIN else (_MARGIN, y + _LINE)
            parts.append(f'<rect x="{x:g}" y="{y - 7:g}" width="16" height="4" rx="2" style="fill:{colour}"/>')
            parts.append(f'<text x="{x + 22:g}" y="{y:g}">{escape(name)}</text>')
            x += width
        y += _LINE + 4
    drawn, height = _drawn(chart)
    parts.append(f'<g transform="translate({_MARGIN:g} {y - 10:g})">{drawn}</g>')
    said = list(_lines(chart.sentences, y + height + 12))
    return "\n".join([*parts, *said]), y + height + _LINE * len(said) + 12


def _lines(texts: Sequence[str], y: float, style: str = "", width: float = _ACROSS) -> Iterator[str]:
    """Yield the lines of texts, the first at ``y``. They leave room for the wider font that a browser may have."""
    for text in texts:
        for line in textwrap.wrap(text, int((width - 2 * _MARGIN) / (11.5 if style else 8.4))):
            yield f'<text class="{style}" x="{_MARGIN:g}" y="{y:g}">{escape(line)}</text>'
            y += _LINE


def _drawn(chart: Figure) -> tuple[str, float]:
    """Return the elements of a chart, and their height."""
    parts, height = (_curves if chart.x_name else _bars)(chart)
    texts = []
    for name, marks in chart.series.items():
        for mark in marks:
            where = f"{name} at {mark.x:,.10g}" if chart.x_name else mark.name
            texts.append(f"{where} {mark.text}" + (f" ({mark.word})" if mark.word else ""))
    label = escape(f"{chart.axis}: {'; '.join(texts)}")
    return f'<g role="img" aria-label="{label}">\n' + "\n".join(parts) + "\n</g>", height


def _title(mark: Mark, where: str) -> str:
    """Return the title that appears under the pointer."""
    parts = [f"{where}: {mark.text}", *mark.facts, *filter(None, [mark.word])]
    return f"<title>{escape(', '.join(parts))}</title>"


# ---- Curves ------------------------------------------------------------------------------------------------------


def _curves(chart: Figure) -> tuple[list[str], float]:
    """Return the elements of curves, and their height."""
    xs = sorted({mark.x for mark in chart.marks})
    frame, middle = _frame(chart, xs), (charts.LEFT + charts.RIGHT_EDGE) / 2
    parts = [
        *charts.grid(frame, _labelled(xs, frame)),
        f'<text class="word" x="2" y="10">{escape(chart.axis)}</text>',
        f'<text x="{middle:g}" y="{charts.HEIGHT + 12:g}" text-anchor="middle">{escape(chart.x_name)}</text>',
        *charts.references(chart.lines, frame),
    ]
    for (name, marks), (_, colour) in zip(chart.series.items(), chart.legend, strict=True):
        line = charts.path([(mark.x, mark.value) for mark in marks], frame, "")
        parts.append(f'<g style="--s:{colour}">{line}')
        parts += [_point(mark, frame, f"{name} at {chart.x_name} {mark.x:,.10g}") for mark in marks]
        parts[-1] += "</g>"
    return parts, charts.HEIGHT + 20


def _point(mark: Mark, frame: charts.Frame, where: str) -> str:
    x, y, low, high = frame.x(mark.x), frame.y(mark.value), frame.y(mark.low), frame.y(mark.high)
    path = f"M{x:.1f} {low:.1f}V{high:.1f}M{x - 4:.1f} {low:.1f}h8M{x - 4:.1f} {high:.1f}h8"
    bar = "" if mark.error is None else f'<path class="error" d="{path}"/>'
    dot = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.6"/>'
    return f'<g class="point {mark.look}">{_title(mark, where)}{bar}{dot}</g>'


def _frame(chart: Figure, xs: Sequence[float]) -> charts.Frame:
    """Return the frame of curves. No point and no error bar touches an edge of it."""
    frame, log = charts.frame_around(xs, [*chart.reach, *(value for _, value in chart.lines)]), _is_log(xs)
    room = (xs[-1] / xs[0]) ** 0.04 if log else 0.04 * (xs[-1] - xs[0])
    x_range = (xs[0] / room, xs[-1] * room) if log else (xs[0] - room, xs[-1] + room)
    return dataclasses.replace(frame, x_range=x_range, log=log)


def _is_log(xs: Sequence[float]) -> bool:
    """Return whether x gets a logarithmic axis: the places span a power of ten, and lie more evenly on such an axis."""
    if len(xs) < 3 or xs[0] <= 0 or xs[-1] < _LOG_FROM * xs[0] * (1 - 1e-9):
        return False
    pairs = list(zip(xs, xs[1:], strict=False))
    gaps, ratios = [b - a for a, b in pairs], [math.log(b / a) for a, b in pairs]
    return max(ratios) / min(ratios) < max(gaps) / min(gaps)


def _labelled(xs: Sequence[float], frame: charts.Frame) -> list[float]:
    """Return the places along x that get a label: the last place, and each place whose label has room."""
    room = {x: _CHARACTER * len(charts.exact_label(x)) / 2 + 3 for x in xs}  # to either side of a label
    last, free, found = frame.x(xs[-1]) - room[xs[-1]], 0.0, list[float]()
    for x in xs[:-1]:
        if free <= frame.x(x) - room[x] and frame.x(x) + room[x] <= last:
            found, free = [*found, x], frame.x(x) + room[x]
    return [*found, xs[-1]]


# ---- Bars --------------------------------------------------------------------------------------------------------


def _bars(chart: Figure) -> tuple[list[str], float]:
    """Return the elements of bars, one below another, each under its name, and their height."""
    begin, end = _ends(chart)

    def place(value: float) -> float:
        return _LEFT + (value - begin) / (end - begin) * (_RIGHT - _LEFT)

    top, zero = _LINE * len(chart.lines) + 4, place(max(begin, 0.0))
    parts, y, first = list[str](), top, chart.marks[0]
    for mark in chart.marks:
        drawn, height = _bar(mark, y, zero, place, alone=len(chart.marks) == 1)
        parts.append(drawn)
        y += height
    under = []
    if first.error and len(chart.marks) > 1:
        x, width = place(first.low), place(first.high) - place(first.low)
        under.append(f'<rect class="band" x="{x:.1f}" y="{top:g}" width="{width:.1f}" height="{y - top:.1f}"/>')
    for value in charts.ticks(begin, end):
        x = place(value)
        anchor = "start" if x < _LEFT + 14 else "end" if x > _RIGHT - 14 else "middle"
        under.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top:g}" y2="{y:.1f}"/>')
        under.append(f'<text x="{x:.1f}" y="{y + 18:.1f}" text-anchor="{anchor}">{charts.tick_label(value)}</text>')
    for i, (name, value) in enumerate(chart.lines):
        x, at_y = place(value), _LINE * (i + 1) - 6
        shift, anchor = (5, "start") if x < (_LEFT + _RIGHT) / 2 else (-5, "end")
        under.append(f'<line class="reference" x1="{x:.1f}" x2="{x:.1f}" y1="{at_y - 10:g}" y2="{y:.1f}"/>')
        at, label = f'x="{x + shift:.1f}" y="{at_y:g}" text-anchor="{anchor}"', escape(f"{name} {rounded(value)}")
        under.append(f'<text class="reference" {at}>{label}</text>')
    axis, middle = chart.axis + ("" if begin <= 0 else " (the axis does not begin at 0)"), (_LEFT + _RIGHT) / 2
    under.append(f'<text x="{middle:g}" y="{y + 38:.1f}" text-anchor="middle">{escape(axis)}</text>')
    return [*under, *parts], y + 46


def _ends(chart: Figure) -> tuple[float, float]:
    """Return the ends of the axis of bars. It begins at 0 unless small differences far above 0 could not be seen."""
    values = [*chart.reach, *(value for _, value in chart.lines)]
    low, high = min(values), max(values)
    room = 0.25 * (high - low) or abs(high) * 0.1 or 1.0
    begin = min(low - room, 0.0) if low < 0 else 0.0 if low < 0.5 * high or low < room else low - room
    return begin, max(high + room / 8, 0.0)


def _bar(mark: Mark, y: float, zero: float, place: Callable[[float], float], alone: bool) -> tuple[str, float]:
    """Return a bar from ``zero`` under its name, the first line of which begins at ``y``, and its height."""
    word = mark.word or ("reference" if mark.look == "reference" and not alone else "")
    said = f"{mark.value:.4f}" + (f" · {word}" if word else "")
    names = _wrapped(mark.name, int((_RIGHT - _LEFT) / _CHARACTER) - len(said) - 2)
    drawn = [
        f'<text class="name" x="{_LEFT:g}" y="{y + _LINE * (i + 1) - 5:.1f}">{escape(name)}</text>'
        for i, name in enumerate(names)
    ]
    drawn.append(f'<text class="word" x="{_RIGHT:g}" y="{y + _LINE - 5:.1f}" text-anchor="end">{escape(said)}</text>')
    top, (left, right) = y + _LINE * len(names), sorted((zero, place(mark.value)))
    size = f'width="{right - left:.1f}" height="{_BAR:g}" rx="2"'
    drawn.append(f'<rect class="bar" x="{left:.1f}" y="{top:.1f}" {size}/>')
    if mark.error is not None:
        low, high, middle = place(mark.low), place(mark.high), top + _BAR / 2
        path = f"M{low:.1f} {middle:.1f}H{high:.1f}M{low:.1f} {middle - 4:.1f}v8M{high:.1f} {middle - 4:.1f}v8"
        drawn.append(f'<path class="error" d="{path}"/>')
    return f'<g class="{mark.look}">{_title(mark, mark.name)}{"".join(drawn)}</g>', top + _BAR + 8 - y


def _wrapped(name: str, most: int) -> list[str]:
    """Return a name in lines of at most ``most`` characters, which end at one of ``_+=-`` where possible."""
    lines = [""]
    for part in re.findall(rf"[^_+=-]{{1,{max(most - 1, 1)}}}[_+=-]?|[_+=-]", name):
        if len(lines[-1] + part) > most:
            lines.append("")
        lines[-1] += part
    return lines
