"""Draws figures for the report of a fine-tuned model: confusion table (HTML), scatter plot and attention (SVG)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from bert_jax.reporting.charts import tick_labels, ticks

MANY_LABELS = 8  # with more labels, column names are written vertically
FULLEST = 48  # percent of colour in a cell with the whole row's count; text stays readable
CELL, WIDE_CELL, FEW_TOKENS, MARGIN = 12, 18, 16, 74  # for attention pictures; sizes in view-box units
FAINTEST = 0.04  # weights below this share of the largest are not drawn, to keep the page small
MAX_TOKEN = 10  # most characters of a token's label
SIDE, LEFT, BOTTOM, TOP = 420.0, 52.0, 40.0, 18.0  # sizes in a scatter plot


def heat_table(labels: Sequence[str], counts: Sequence[Sequence[int]]) -> str:
    """Return a table with a row per true label and a column per predicted label.

    Each cell shows its count and the count's share of the row.
    """
    many = " many" if len(labels) > MANY_LABELS else ""
    head = "".join(f'<th scope="col"><span>{escape(name)}</span></th>' for name in labels)
    rows = []
    for i, row in enumerate(counts):
        total = sum(row)
        cells = "".join(_cell(labels, i, j, count, total) for j, count in enumerate(row))
        rows.append(f'<tr><th scope="row">{escape(labels[i])}</th>{cells}</tr>')
    body = "\n".join(rows)
    return (
        f'<div class="scroll"><table class="heat{many}"><thead><tr><th></th>{head}</tr></thead><tbody>\n{body}\n'
        "</tbody></table></div>"
    )


def _cell(labels: Sequence[str], i: int, j: int, count: int, total: int) -> str:
    if not count:
        return '<td class="none">0</td>' if i == j else '<td class="none">·</td>'
    share = count / total
    colour = "good" if i == j else "bad"
    # The square root makes cells with small shares visible.
    style = f"--h:var(--{colour});--s:{max(6.0, FULLEST * math.sqrt(share)):.0f}%"
    title = escape(f"{labels[i]}, predicted {labels[j]}: {count:,} of {total:,}")
    return f'<td style="{style}" title="{title}">{count:,}<small>{share:.0%}</small></td>'


def scatter(points: Sequence[tuple[float, float]], x_name: str, y_name: str) -> str:
    """Return a scatter plot, with the same scale on both axes and the diagonal where both values are equal.

    Return "" if no point is finite.
    """
    known = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    if not known:
        return ""
    values = [value for point in known for value in point]
    margin = (max(values) - min(values)) * 0.04 or 1.0
    low, high = min(values) - margin, max(values) + margin
    right, base = SIDE - 10, SIDE - BOTTOM

    def across(value: float) -> float:
        return LEFT + (value - low) / (high - low) * (right - LEFT)

    def up(value: float) -> float:
        return base - (value - low) / (high - low) * (base - TOP)

    marks = ticks(low, high)
    parts = []
    for value, label in zip(marks, tick_labels(marks), strict=True):
        x, y = across(value), up(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{base}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
        parts.append(f'<text x="{x:.1f}" y="{base + 16}" text-anchor="middle">{label}</text>')
    parts.append(f'<line class="even" x1="{LEFT}" x2="{right}" y1="{base}" y2="{TOP}"/>')
    for x, y in known:
        title = escape(f"{x_name} {x:g}, {y_name} {y:g}")
        parts.append(f'<circle cx="{across(x):.1f}" cy="{up(y):.1f}" r="3.5"><title>{title}</title></circle>')
    parts.append(f'<text x="{right}" y="{SIDE - 4}" text-anchor="end">{escape(x_name)}</text>')
    parts.append(f'<text x="{LEFT}" y="{TOP - 2}">{escape(y_name)}</text>')
    described = escape(f"{len(known):,} points, {y_name} against {x_name}")
    inside = "\n".join(parts)
    return f'<svg viewBox="0 0 {SIDE:g} {SIDE:g}" role="img" aria-label="{described}">\n{inside}\n</svg>'


def attention(tokens: Sequence[str], weights: Sequence[Sequence[float]], largest: float) -> str:
    """Return the picture of one attention head, with a row per query token and a column per key token.

    ``largest`` is the weight that is drawn as a full square.
    """
    edge = CELL if len(tokens) > FEW_TOKENS else WIDE_CELL
    size = MARGIN + edge * len(tokens)
    parts = [f'<rect class="frame" x="{MARGIN}" y="{MARGIN}" width="{size - MARGIN}" height="{size - MARGIN}"/>']
    for i, token in enumerate(tokens):
        short = escape(token if len(token) <= MAX_TOKEN else token[: MAX_TOKEN - 1] + "…")
        middle = MARGIN + edge * i + edge / 2
        parts.append(f'<text x="{MARGIN - 4}" y="{middle + 3.5:g}" text-anchor="end">{short}</text>')
        parts.append(f'<text transform="translate({middle + 3.5:g} {MARGIN - 4}) rotate(-90)">{short}</text>')
    for i, row in enumerate(weights):
        for j, weight in enumerate(row):
            if weight >= FAINTEST * largest and weight > 0:
                place = f'x="{MARGIN + edge * j}" y="{MARGIN + edge * i}"'
                title = escape(f"{tokens[i]} → {tokens[j]} {weight:.3f}")
                # Most weights are small; the square root makes them visible.
                parts.append(f'<rect {place} opacity="{math.sqrt(weight / largest):.2f}"><title>{title}</title></rect>')
    inside = "\n".join(parts)
    style = f"max-width:{1.15 * size:.0f}px;--edge:{edge}px"
    described = f'viewBox="0 0 {size} {size}" role="img" aria-label="attention of one head"'
    return f'<svg style="{style}" {described}>\n{inside}\n</svg>'
