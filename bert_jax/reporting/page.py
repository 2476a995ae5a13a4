"""The look of the report: a style sheet and a few HTML helpers.

The page loads nothing from other files or the network.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape

from bert_jax.reporting.chart_style import CHARTS, COLOURS

STYLE = (
    COLOURS
    + """\
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text); -webkit-text-size-adjust: 100%;
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 40px 24px 64px; }
h1 { font-size: 1.75rem; line-height: 1.2; letter-spacing: -.015em; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; letter-spacing: -.005em; margin: 44px 0 14px; }
h3 { font-size: .95rem; font-weight: 600; margin: 0; }
p { margin: .4em 0; } .soft { color: var(--soft); } small, .small { font-size: .85rem; }
pre { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: .86em; }
header, .tiles, figcaption { overflow-wrap: anywhere; }
header .line { display: flex; flex-wrap: wrap; align-items: center; gap: 8px 14px; }
.badge { border: 1px solid currentColor; border-radius: 99px; padding: 1px 12px; font-size: .82rem; font-weight: 600; }
.badge.good { color: var(--good); } .badge.bad { color: var(--bad); } .badge.neutral { color: var(--train); }
.badge.warn { color: var(--eval); }
.card { background: var(--card); border: 1px solid var(--rule); border-radius: 12px; padding: 18px 20px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(165px, 1fr)); gap: 14px; margin: 26px 0 0; }
.tiles .card { padding: 14px 18px 16px; }
.tiles dt { color: var(--soft); font-size: .85rem; } .tiles dd { margin: 0; }
.tiles .big { font-size: 1.75rem; font-weight: 650; line-height: 1.25; letter-spacing: -.02em;
  font-variant-numeric: tabular-nums; }
.tiles .big small { font-size: .95rem; font-weight: 500; color: var(--soft); letter-spacing: 0; }
.tiles .note { font-size: .82rem; line-height: 1.4; color: var(--soft); } .tiles .note.good { color: var(--good); }
.tiles .note.bad { color: var(--bad); }
.charts { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 16px; }
figure { margin: 0; } figcaption { display: flex; flex-wrap: wrap; justify-content: space-between; gap: 2px 16px; }
.legend { display: flex; flex-wrap: wrap; gap: 14px; font-size: .82rem; color: var(--soft); }
.legend i { display: inline-block; width: 16px; height: 3px; border-radius: 2px; margin-right: 6px;
  vertical-align: middle; }
svg { display: block; width: 100%; height: auto; margin-top: 8px; overflow: visible; }
"""
    + CHARTS
    + """\
.scroll { overflow-x: auto; background:
  linear-gradient(to right, var(--card) 40%, transparent) left / 36px 100% no-repeat local,
  linear-gradient(to left, var(--card) 40%, transparent) right / 36px 100% no-repeat local,
  linear-gradient(to right, var(--edge), transparent) left / 14px 100% no-repeat scroll,
  linear-gradient(to left, var(--edge), transparent) right / 14px 100% no-repeat scroll; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 7px 14px 7px 0; border-bottom: 1px solid var(--rule); vertical-align: top; }
tr:last-child > td, tr:last-child > th[scope=row] { border-bottom: 0; }
thead th { color: var(--soft); font-size: .82rem; font-weight: 500; white-space: nowrap; }
th[scope=row] { font-weight: 500; min-width: 8em; overflow-wrap: break-word; }
td.n, th.n { text-align: right; white-space: nowrap; padding-right: 10px; }
.keys th[scope=row] { white-space: nowrap; overflow-wrap: normal; width: 1%; }
.lead { font-size: 1.06rem; max-width: 62em; margin: 14px 0 0; overflow-wrap: anywhere; }
td.wrap { overflow-wrap: anywhere; } .flag { white-space: nowrap; }
.split { display: flex; height: 14px; border-radius: 7px; overflow: hidden; gap: 2px; margin: 4px 0 12px; }
.split i { display: block; min-width: 2px; }
.keys { display: flex; flex-wrap: wrap; gap: 4px 22px; font-size: .9rem; margin: 0; padding: 0; list-style: none; }
.keys i { display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: 7px; }
.examples { display: grid; grid-template-columns: repeat(auto-fit, minmax(300px, 1fr)); gap: 14px; }
.examples p { margin: 0 0 10px; }
mark { background: color-mix(in srgb, var(--train) 18%, transparent); color: inherit; border-radius: 4px;
  padding: 0 4px; }
.guess { display: grid; grid-template-columns: minmax(70px, 8em) 1fr 3.6em; gap: 10px; align-items: center;
  font-size: .9rem; }
.guess b { font-weight: 500; overflow-wrap: anywhere; } .guess i { display: block; height: 8px; border-radius: 4px;
  background: var(--train); min-width: 2px; } .guess span { text-align: right; font-variant-numeric: tabular-nums; }
details { margin-top: 14px; }
summary { cursor: pointer; font-weight: 600; } details[open] summary { margin-bottom: 10px; }
pre { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; } pre + p { margin-top: 14px; }
:focus-visible { outline: 2px solid var(--train); outline-offset: 2px; border-radius: 4px; }
@media (max-width: 860px) { .charts { grid-template-columns: minmax(0, 1fr); } }
@media (max-width: 520px) { main { padding: 24px 14px 40px; } .card { padding: 14px; } h1 { font-size: 1.4rem; }
  .tiles { grid-template-columns: 1fr 1fr; gap: 10px; } .tiles .big { font-size: 1.4rem; }
  svg text { font-size: 16px; } svg .mark text { font-size: 14px; }
  .examples { grid-template-columns: minmax(0, 1fr); }
  .cells thead { display: none; } .cells, .cells tbody, .keys tbody { display: block; }
  :is(.cells, .keys) :is(tr, th, td) { display: block; border: 0; padding: 0; }
  :is(.cells, .keys) tr { padding: 7px 0; border-bottom: 1px solid var(--rule); }
  :is(.cells, .keys) tr:last-child { border: 0; } .cells th[scope=row] { font-weight: 600; }
  .cells td { display: flex; justify-content: space-between; gap: 0 14px; flex-wrap: wrap; white-space: normal; }
  .cells td[data-of]::before { content: attr(data-of); color: var(--soft); } }
@media print { body { background: #fff; } .card { break-inside: avoid; } }
/* Only the report of a fine-tuned model needs the rest. */
.heat { border-collapse: separate; border-spacing: 2px; width: auto; font-size: .85rem; }
.heat th, .heat td { border: 0; padding: 5px 8px; } .heat th { font-weight: 500; white-space: nowrap; min-width: 0; }
.heat thead th { text-align: center; vertical-align: bottom; } .heat thead th span { display: inline-block; }
.heat.many thead th span { writing-mode: vertical-rl; transform: rotate(180deg); }
.heat tbody th { text-align: right; vertical-align: middle; color: var(--soft); position: sticky;
  left: 0; background: var(--card); }
.heat td { text-align: center; vertical-align: middle; border-radius: 5px; min-width: 46px; line-height: 1.25;
  background: color-mix(in srgb, var(--h, transparent) var(--s, 0%), var(--card)); }
@media (min-width: 1180px) { .sideways.few { display: none; } }
.heat td small { display: block; color: var(--soft); font-size: .72rem; } .heat td.none { color: var(--soft); }
.heat.many td { min-width: 30px; padding: 3px 5px; } .heat.many td small { display: none; }
@media (max-width: 520px) { .heat thead th span { writing-mode: vertical-rl; transform: rotate(180deg); }
  .heat td { padding: 5px 4px; min-width: 38px; } .heat th { padding: 5px 4px; } }
.wrong p { overflow-wrap: anywhere; white-space: pre-line; } .wrong .verdict { margin: 10px 0 0; padding-top: 8px;
  border-top: 1px solid var(--rule); font-size: .9rem; }
.wrong .second { border-left: 3px solid var(--rule); padding-left: 10px; }
.wrong ul { list-style: none; margin: 0; padding: 0; } .wrong li { padding: 4px 0 4px 10px; margin: 2px 0;
  border-left: 3px solid var(--rule); font-size: .92rem; overflow-wrap: anywhere; }
.wrong li.right { border-color: var(--good); } .wrong li.chosen { border-color: var(--bad); }
.right-word { color: var(--good); font-weight: 600; } .bad-word { color: var(--bad); font-weight: 600; }
mark.right { background: color-mix(in srgb, var(--good) 30%, transparent); }
mark.predicted { background: color-mix(in srgb, var(--bad) 26%, transparent); }
mark.both { background: color-mix(in srgb, var(--b) 36%, transparent); }
.words { line-height: 2; } .words b { font-weight: 500; border-radius: 4px; padding: 1px 5px;
  background: color-mix(in srgb, var(--h) 26%, transparent); }
.words b small { color: var(--soft); font-size: .68rem; margin-left: 4px; }
.words u { text-decoration: underline wavy var(--bad) 1.5px; text-underline-offset: 4px; }
.words + .words { margin-top: 4px; } .words i { font-style: normal; color: var(--soft); font-size: .8rem;
  display: inline-block; min-width: 5.5em; }
"""
)
_FLAG = re.compile(r"--\w+")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"  # makes browsers load nothing, whatever the page contains


def page(title: str, body: str, style: str = STYLE) -> str:
    """Return a complete HTML document. ``body`` is HTML."""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{style}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""


def page_section(title: str, body: str) -> str:
    """Return a section of the page with a heading; "" if ``body`` is empty."""
    return f"<section>\n<h2>{escape(title)}</h2>\n{body}\n</section>" if body else ""


def as_html(text: str) -> str:
    """Return text as HTML in which a line never breaks between the hyphens of a flag and its name."""
    return _FLAG.sub(r'<span class="flag">\g<0></span>', escape(text))


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers_from: int = 1, keys: bool = False) -> str:
    """Return an HTML table. ``head`` and ``rows`` hold plain text, which is escaped here.

    The first cell of each row is a heading. Columns from number ``numbers_from`` on are right-aligned. In a narrow
    window each cell has a separate line, which begins with the title of its column.

    Args:
      keys: whether each row is a key, which never breaks, and its value as text.
    """

    def kind(column: int) -> str:
        return ' class="n"' if column >= numbers_from and not keys else ' class="wrap"'

    titles = "".join(f'<th scope="col"{kind(i)}>{escape(cell)}</th>' for i, cell in enumerate(head))
    lines = []
    for first, *rest in rows:
        names = [*head[1:], *[""] * len(rest)]
        cells = "".join(
            f'<td{kind(i)} data-of="{escape(of)}">{as_html(cell)}</td>' if of else f"<td{kind(i)}>{as_html(cell)}</td>"
            for i, (cell, of) in enumerate(zip(rest, names, strict=False), start=1)
        )
        lines.append(f'<tr><th scope="row">{escape(first)}</th>{cells}</tr>')
    heading = f"<thead><tr>{titles}</tr></thead>" if head else ""
    body, style = "\n".join(lines), "keys" if keys else "cells"
    return f'<div class="scroll"><table class="{style}">{heading}<tbody>\n{body}\n</tbody></table></div>'


def chart_card(title: str, keys: Sequence[tuple[str, str]], drawing: str, below: str = "") -> str:
    """Return a chart with its title and its legend, ``keys``, pairs of a name and a CSS colour. ``below`` is HTML."""
    legend = "".join(f'<span><i style="background:{colour}"></i>{escape(name)}</span>' for name, colour in keys)
    return (
        f'<figure class="card"><figcaption><h3>{escape(title)}</h3><span class="legend">{legend}</span></figcaption>'
        f"{drawing}{below}</figure>"
    )


def collapsed(title: str, body: str) -> str:
    """Return a section of the page that is collapsed until the user clicks its title."""
    return f'<details class="card"><summary>{escape(title)}</summary>\n{body}\n</details>'
