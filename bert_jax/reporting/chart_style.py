"""The colours of pages and the rules of charts, in one place: for a page, for a picture and for a notebook."""

from __future__ import annotations

import re

COLOURS = """
:root { color-scheme: light dark;
  --edge: #1b233055;
  --page: #f6f7f9; --card: #ffffff; --text: #1b2330; --soft: #5b6675; --rule: #e3e7ed; --grid: #edf0f4;
  --train: #2f6fd6; --eval: #d9631e; --reference: #7b52c4; --good: #1c7f4f; --bad: #b3352b;
  --a: #2f6fd6; --b: #e39a2d; --c: #2f9e7e; --d: #8a63cf; --e: #d2573f; --f: #8793a3; --g: #c66b9d; --h: #6b7f2f;
  --i: #3f93ab; --j: #a8703f; --k: #5c6675; }
@media (prefers-color-scheme: dark) { :root {
  --edge: #000c; --page: #0f131a; --card: #171d27; --text: #e6eaf1; --soft: #98a4b5; --rule: #2a3342; --grid: #232b38;
  --train: #6fa4ff; --eval: #ff9f5a; --reference: #b699f5; --good: #5cc894; --bad: #ff8a7d;
  --a: #6fa4ff; --b: #f0b65a; --c: #5cc8a6; --d: #b699f5; --e: #f58672; --f: #8d99aa; --g: #e79cc4; --h: #b5c96a;
  --i: #74c3da; --j: #d9a273; --k: #b3bdcc; } }
"""
LETTERS = "abcdefghijk"  # the variables for groups
CHARTS = """svg text { font-size: 12px; fill: var(--soft); font-variant-numeric: tabular-nums; }
svg .grid { stroke: var(--grid); } svg .axis { stroke: var(--rule); }
svg .curve { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
svg .raw { stroke-width: 1; opacity: .32; } svg .train { stroke: var(--train); } svg .eval { stroke: var(--eval); }
svg .dot { stroke: none; } svg .dot.train { fill: var(--train); } svg .dot.eval { fill: var(--eval); }
svg line.reference { stroke: var(--reference); stroke-dasharray: 5 4; stroke-width: 1.2; }
svg text.reference { fill: var(--reference); paint-order: stroke; stroke: var(--card); stroke-width: 4px; }
svg .mark line { stroke: var(--soft); stroke-dasharray: 1 4; stroke-linecap: round; stroke-width: 1.5; }
svg .mark text { font-size: 11px; }
svg .hover rect { fill: transparent; } svg .hover > line { stroke: var(--soft); }
svg .hover > line, svg .hover circle { opacity: 0; }
svg .hover:hover > line { opacity: .5; } svg .hover:hover circle { opacity: 1; }
"""
ERROR_BARS = """
svg .curve { stroke: var(--s); } svg .band { fill: var(--soft); opacity: .13; } svg .name { fill: var(--text); }
svg .bar { fill: var(--train); } svg .error { stroke: var(--text); stroke-width: 1.5; fill: none; }
svg .reference .bar { fill: var(--f); } svg .doubt .bar { opacity: .42; }
svg .other .bar { fill: none; stroke: var(--soft); stroke-dasharray: 4 3; }
svg .point { fill: var(--s); stroke: var(--s); stroke-width: 2; } svg .point .error { stroke: var(--s); }
svg .point.doubt circle { fill: var(--card); } svg .point.other circle { fill: var(--card); stroke: var(--soft); }
.charts { margin-bottom: 32px; } figure p { overflow-wrap: anywhere; }
svg .name, svg .word { paint-order: stroke; stroke: var(--card); stroke-width: 4px; }
"""
_PICTURE = """
svg { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif; }
svg text { font-size: 15px; } svg .title { fill: var(--text); font-size: 18px; font-weight: 600; }
svg .card { fill: var(--card); stroke: var(--rule); }
"""
OF_PICTURE = COLOURS + CHARTS + ERROR_BARS + _PICTURE  # the rules of a file that needs no other file
_NOTEBOOK = """
svg { background: #fff; font: 12px system-ui, sans-serif; max-width: 100%; height: auto; }
svg .title { fill: var(--text); font-size: 15px; font-weight: 600; }
svg .key { stroke: none; } svg .key.train { fill: var(--train); } svg .key.eval { fill: var(--eval); }
"""


def of_notebook(scope: str) -> str:
    """Return the rules of charts for the class ``scope`` alone, since a notebook applies them to its whole page.

    The colours can be read on white: a notebook with a dark look gets a white card. They are written out, because
    programs that print notebooks do not know variables.
    """
    light = dict(re.findall(r"--(\w+): (#\w+)", COLOURS.partition("@media")[0]))
    coloured = re.sub(r"var\(--(\w+)\)", lambda found: light[found[1]], CHARTS + _NOTEBOOK)
    return re.sub(r"\bsvg\b", f".{scope}", coloured)
