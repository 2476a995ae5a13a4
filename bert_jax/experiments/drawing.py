"""Draws the figures of an ablation or a sweep as SVG: in a page, or as a picture that needs nothing else."""

from __future__ import annotations

import dataclasses
import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

from bert_jax.experiments.pictures import Figure, kind_of, word_of
from bert_jax.reporting import charts, page
from bert_jax.reporting.formats import figure as rounded

if TYPE_CHECKING:
    from bert_jax.experiments.table import VariantSummary

COLOURS = "abcdefghijk"  # variables of the page, a colour for each curve; two have those of the run's report
EDGES = 8.0, 546.0  # of the bars
LINE, BAR = 20.0, 12.0  # heights of a line of text and of a bar
CHARACTER = 9.6  # width of a character at the size that a narrow page has
ACROSS, MARGIN = 600.0, 20.0  # width of one figure in a picture, and of the space around it
LOG_FROM = 10.0  # a largest x of so many times the smallest may have a logarithmic axis
STYLE = """
svg .curve { stroke: var(--s); } svg .band { fill: var(--soft); opacity: .13; } svg .name { fill: var(--text); }
svg .bar { fill: var(--train); } svg .error { stroke: var(--text); stroke-width: 1.5; fill: none; }
svg .reference .bar { fill: var(--f); } svg .doubt .bar { opacity: .42; }
svg .other .bar { fill: none; stroke: var(--soft); stroke-dasharray: 4 3; }
svg .point { fill: var(--s); stroke: var(--s); stroke-width: 2; } svg .point .error { stroke: var(--s); }
svg .point.doubt circle { fill: var(--card); } svg .point.other circle { fill: var(--card); stroke: var(--soft); }
.charts { margin-bottom: 32px; } figure p { overflow-wrap: anywhere; }
svg .name, svg .word { paint-order: stroke; stroke: var(--card); stroke-width: 4px; }
"""
OF_PICTURE = """
svg { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif; }
svg text { font-size: 15px; } svg .title { fill: var(--text); font-size: 18px; font-weight: 600; }
svg .card { fill: var(--card); stroke: var(--rule); }
"""


def _value(row: VariantSummary) -> str:
    return f"{row.mean:.4f}" + ("" if row.bar is None else f" ± {row.bar:.4f}")


def _told(row: VariantSummary, where: str) -> str:
    """Return the title that appears under the pointer."""
    told = [f"{where}: {_value(row)}", f"{row.seeds} seed{'s' * (row.seeds > 1)}"]
    if row.difference is not None:
        told.append(f"{row.difference:+.4f} from {row.reference}")
    return f"<title>{escape(', '.join([*told, *filter(None, [word_of(row)])]))}</title>"


def _error(row: VariantSummary, x: float, low: float, high: float, across: bool) -> str:
    """Return an error bar from ``low`` to ``high``, in pixels, along x if ``across``."""
    if row.bar is None:
        return ""
    if across:
        path = f"M{low:.1f} {x:.1f}H{high:.1f}M{low:.1f} {x - 4:.1f}v8M{high:.1f} {x - 4:.1f}v8"
    else:
        path = f"M{x:.1f} {low:.1f}V{high:.1f}M{x - 4:.1f} {low:.1f}h8M{x - 4:.1f} {high:.1f}h8"
    return f'<path class="error" d="{path}"/>'


def _styles(chart: Figure) -> list[str]:
    """Return the colour of each curve, as a variable of the page."""
    few = ["--train", "--eval"] if len(chart.series) < 3 else [f"--{letter}" for letter in COLOURS]
    return [f"var({few[i % len(few)]})" for i in range(len(chart.series))]


def _is_log(xs: Sequence[float]) -> bool:
    """Return whether places along x want a logarithmic axis: they span a power of ten, and lie more evenly on one."""
    if len(xs) < 3 or xs[0] <= 0 or xs[-1] < LOG_FROM * xs[0] * (1 - 1e-9):
        return False
    pairs = list(zip(xs, xs[1:], strict=False))
    gaps, ratios = [b - a for a, b in pairs], [math.log(b / a) for a, b in pairs]
    return max(ratios) / min(ratios) < max(gaps) / min(gaps)


def _frame(chart: Figure) -> charts.Frame:
    """Return the frame of curves; nothing of a point or of its error bar lies at an edge."""
    low, high = chart.reach
    xs, log = chart.xs, _is_log(chart.xs)
    ends = charts.Series("", [(xs[0], low), (xs[-1], high)], "")
    frame = charts.frame_of(charts.Chart("", (ends,), chart.lines))
    assert frame is not None
    room = (xs[-1] / xs[0]) ** 0.04 if log else 0.04 * (xs[-1] - xs[0])
    x_range = (xs[0] / room, xs[-1] * room) if log else (xs[0] - room, xs[-1] + room)
    return dataclasses.replace(frame, x_range=x_range, log=log)


def _curves(chart: Figure) -> tuple[list[str], float]:
    """Return the elements of curves, and their height."""
    frame, last = _frame(chart), chart.xs[-1]
    room = {x: CHARACTER * len(charts.exact_label(x)) / 2 + 3 for x in chart.xs}  # to either side of a label
    ticks, free = list[float](), 0.0
    for x in chart.xs:  # a label at the last place, and where no other stands
        if x == last or (frame.x(x) - room[x] >= free and frame.x(x) + room[x] <= frame.x(last) - room[last]):
            ticks, free = [*ticks, x], frame.x(x) + room[x]
    parts = [*charts.grid(frame, ticks), f'<text class="word" x="2" y="10">{escape(chart.axis)}</text>']
    middle = (charts.LEFT + charts.RIGHT_EDGE) / 2
    parts.append(f'<text x="{middle:g}" y="{charts.HEIGHT + 12:g}" text-anchor="middle">{escape(chart.x_name)}</text>')
    parts += charts.references(charts.Chart("", (), chart.lines), frame)
    for (name, points), style in zip(chart.series.items(), _styles(chart), strict=True):
        parts.append(f'<g style="--s:{style}">{charts.path([(x, row.mean) for x, row in points], frame, "")}')
        for place, row in points:
            x, y, bar = frame.x(place), frame.y(row.mean), row.bar or 0
            title = _told(row, f"{name} at {chart.x_name} {place:,.10g}")
            drawn = _error(row, x, frame.y(row.mean - bar), frame.y(row.mean + bar), across=False)
            dot = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.6"/>'
            parts.append(f'<g class="point {kind_of(row)}">{title}{drawn}{dot}</g>')
        parts[-1] += "</g>"
    return parts, charts.HEIGHT + 20


def _bars(chart: Figure) -> tuple[list[str], float]:
    """Return the elements of bars, one below another, each under its name, and their height."""
    left, right = EDGES
    lowest, highest = chart.reach
    low, high = (f(value for _, value in [("", end), *chart.lines]) for f, end in ((min, lowest), (max, highest)))
    room = 0.25 * (high - low) or abs(high) * 0.1 or 1.0
    begin = min(low - room, 0.0) if low < 0 else 0.0 if low < 0.5 * high or low < room else low - room
    end = max(high + room / 8, 0.0)

    def place(value: float) -> float:
        return left + (value - begin) / (end - begin) * (right - left)

    top, zero = LINE * len(chart.lines) + 4, place(max(begin, 0.0))
    parts, y, first = list[str](), top, chart.rows[0]
    for row in chart.rows:
        word = word_of(row) or ("reference" if kind_of(row) == "reference" and len(chart.rows) > 1 else "")
        said = f"{row.mean:.4f}" + (f" · {word}" if word else "")
        names = _wrapped(row.variant, int((right - left) / CHARACTER) - len(said) - 2)
        title = _told(row, row.variant)
        drawn = [
            f'<text class="name" x="{left:g}" y="{y + LINE * (i + 1) - 5:.1f}">{escape(name)}</text>'
            for i, name in enumerate(names)
        ]
        drawn.append(f'<text class="word" x="{right:g}" y="{y + LINE - 5:.1f}" text-anchor="end">{escape(said)}</text>')
        y += LINE * len(names)
        ends = sorted((zero, place(row.mean)))
        drawn.append(
            f'<rect class="bar" x="{ends[0]:.1f}" y="{y:.1f}" width="{ends[1] - ends[0]:.1f}" height="{BAR:g}" rx="2"/>'
        )
        bar = row.bar or 0
        drawn.append(_error(row, y + BAR / 2, place(row.mean - bar), place(row.mean + bar), across=True))
        parts.append(f'<g class="{kind_of(row)}">{title}{"".join(drawn)}</g>')
        y += BAR + 8
    under = []
    if first.bar and len(chart.rows) > 1:
        x, width = place(first.mean - first.bar), place(first.mean + first.bar) - place(first.mean - first.bar)
        under.append(f'<rect class="band" x="{x:.1f}" y="{top:g}" width="{width:.1f}" height="{y - top:.1f}"/>')
    for value in charts.ticks(begin, end):
        x = place(value)
        anchor = "start" if x < left + 14 else "end" if x > right - 14 else "middle"
        under.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top:g}" y2="{y:.1f}"/>')
        under.append(f'<text x="{x:.1f}" y="{y + 18:.1f}" text-anchor="{anchor}">{charts.tick_label(value)}</text>')
    for i, (name, value) in enumerate(chart.lines):
        x, anchor = place(value), "start" if place(value) < (left + right) / 2 else "end"
        at_y, label = LINE * (i + 1) - 6, escape(f"{name} {rounded(value)}")
        under.append(f'<line class="reference" x1="{x:.1f}" x2="{x:.1f}" y1="{at_y - 10:g}" y2="{y:.1f}"/>')
        at = f'x="{x + (5 if anchor == "start" else -5):.1f}" y="{at_y:g}" text-anchor="{anchor}"'
        under.append(f'<text class="reference" {at}>{label}</text>')
    axis = chart.axis + ("" if begin <= 0 else " (the axis does not begin at 0)")
    middle = (left + right) / 2
    under.append(f'<text x="{middle:g}" y="{y + 38:.1f}" text-anchor="middle">{escape(axis)}</text>')
    return [*under, *parts], y + 46


def _wrapped(name: str, most: int) -> list[str]:
    """Return a name in lines of at most ``most`` characters, which end at one of ``_+=-`` where possible."""
    lines = [""]
    for part in re.findall(rf"[^_+=-]{{1,{max(most - 1, 1)}}}[_+=-]?|[_+=-]", name):
        if len(lines[-1] + part) > most:
            lines.append("")
        lines[-1] += part
    return lines


def _drawn(chart: Figure) -> tuple[str, float]:
    """Return the elements of a chart, and their height."""
    parts, height = (_curves if chart.x_name else _bars)(chart)
    told = []
    for name, points in chart.series.items():
        for x, row in points:
            where, word = f"{name} at {x:,.10g}" if chart.x_name else row.variant, word_of(row)
            told.append(f"{where} {_value(row)}" + (f" ({word})" if word else ""))
    label = escape(f"{chart.axis}: {'; '.join(told)}")
    return f'<g role="img" aria-label="{label}">\n' + "\n".join(parts) + "\n</g>", height


def notes(figures: Sequence[Figure]) -> str:
    """Return what the marks of all charts mean."""
    if not any(row.bar is not None for chart in figures for row in chart.rows):
        return "One seed: there are no error bars, and nothing can be said of differences."
    return (
        "Error bars are two standard errors of the mean over the seeds. Pale bars and hollow points are not shown to "
        "differ from what they are compared with: the error bars overlap, or the difference is within the noise."
    )


def section(figures: Sequence[Figure]) -> str:
    """Return the charts as a part of a page."""
    cards = []
    for chart in figures:
        drawn, height = _drawn(chart)
        keys = "".join(
            f'<span><i style="background:{style}"></i>{escape(name)}</span>'
            for name, style in zip(chart.series, _styles(chart), strict=True)
            if len(chart.series) > 1
        )
        said = "<br>".join(map(page.as_html, chart.sentences))
        cards.append(
            f'<figure class="card"><figcaption><h3>{escape(chart.title)}</h3>'
            f'<span class="legend" style="flex-wrap:wrap">{keys}</span></figcaption>'
            f'<svg viewBox="0 0 {charts.WIDTH:g} {height:g}">\n{drawn}\n</svg>'
            f'<p class="small soft">{said}</p></figure>'
        )
    one = ' style="grid-template-columns:minmax(0,720px)"' if len(cards) == 1 else ""
    return f'<p class="soft">{notes(figures)}</p>\n<div class="charts"{one}>\n' + "\n".join(cards) + "\n</div>"


def _lines(texts: Sequence[str], y: float, style: str = "", width: float = ACROSS) -> Iterator[str]:
    """Return the lines of texts, the first at ``y``, as wide as the font that a browser may have instead."""
    for text in texts:
        for line in textwrap.wrap(text, int((width - 2 * MARGIN) / (11.5 if style else 8.4))):
            yield f'<text class="{style}" x="{MARGIN:g}" y="{y:g}">{escape(line)}</text>'
            y += LINE


def _panel(chart: Figure) -> tuple[str, float]:
    """Return a figure of a picture, with its title, legend and sentences, and its height."""
    parts = list(_lines([chart.title], 32, "title"))
    x, y = MARGIN, 38 + LINE * len(parts)
    if len(chart.series) > 1:
        for name, style in zip(chart.series, _styles(chart), strict=True):
            width = CHARACTER * len(name) + 40
            x, y = (x, y) if x + width <= ACROSS - MARGIN or x == MARGIN else (MARGIN, y + LINE)
            parts.append(f'<rect x="{x:g}" y="{y - 7:g}" width="16" height="4" rx="2" style="fill:{style}"/>')
            parts.append(f'<text x="{x + 22:g}" y="{y:g}">{escape(name)}</text>')
            x += width
        y += LINE + 4
    drawn, height = _drawn(chart)
    parts.append(f'<g transform="translate({MARGIN:g} {y - 10:g})">{drawn}</g>')
    said = list(_lines(chart.sentences, y + height + 12))
    return "\n".join([*parts, *said]), y + height + LINE * len(said) + 12


def picture(title: str, figures: Sequence[Figure]) -> str:
    """Return all charts as one SVG, which needs nothing else and has a background of its own."""
    panels, across = [_panel(chart) for chart in figures], min(2, len(figures))
    width = across * (ACROSS + MARGIN) + MARGIN
    head = [*_lines([title], 40, "title", width)]
    head += _lines([notes(figures)], 44 + LINE * len(head), "", width)
    parts, y = list[str](), 44 + LINE * len(head)
    for i in range(0, len(panels), across):
        row = panels[i : i + across]
        height = max(height for _, height in row) + 8
        for j, (drawn, _) in enumerate(row):
            x = MARGIN + j * (ACROSS + MARGIN)
            card = f'<rect class="card" width="{ACROSS:g}" height="{height:g}" rx="12"/>'
            parts.append(f'<g transform="translate({x:g} {y:g})">{card}\n{drawn}</g>')
        y += height + MARGIN
    size = f'width="{width:g}" height="{y:g}" viewBox="0 0 {width:g} {y:g}"'
    style = page.COLOURS + page.DRAWINGS + STYLE + OF_PICTURE
    back = f'<rect width="{width:g}" height="{y:g}" fill="var(--page)"/>'
    begin = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n<title>{escape(title)}</title>\n<style>{style}</style>'
    return "\n".join([begin, back, *head, *parts, "</svg>\n"])
