"""Draws the picture of README.md from the report of a run: ``python -m tests.docs.picture WORKDIR/report.html``.

It has the headline figures, the first two charts and the filled examples of the page, as one SVG without scripts.
"""

from __future__ import annotations

import re
import sys
import textwrap
from html import unescape
from pathlib import Path
from xml.sax.saxutils import escape

PICTURE = Path(__file__).resolve().parents[2] / "bert_jax" / "reporting" / "quickstart.svg"
WIDTH, CHART, LEGEND = 1180, 540, 84
LINE, FITTING = 22, {"title": 54, "name": 72}  # pixels of a line, and the characters that fit into one
LEFT_OUT = ("time",)  # says more about the machine than about the run
TAGS = re.compile(r"<[^>]+>")


def picture(page: str) -> str:
    """Return the SVG for a page that ``reporting.report`` wrote."""
    style = re.search(r"<style>\n(.*?)</style>", page, re.DOTALL)
    assert style, "the page has no style"
    colours = " ".join(line for line in style[1].splitlines()[:6] if "--" in line or "root" in line)
    rules = "\n".join(line for line in style[1].splitlines() if re.match(r"svg [^{]", line))
    examples, end = _examples(page)
    body = [_header(page), *_tiles(page), *_charts(page), *examples]
    height = f"{end + 10:g}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="system-ui, sans-serif">\n'
        f"<style>{colours}\n{rules}\n"
        "svg .name { font-size: 13px; } svg .big { font-size: 27px; font-weight: 650; fill: var(--text); }\n"
        "svg .title { font-size: 15px; font-weight: 600; fill: var(--text); } svg .good { fill: var(--good); }\n"
        "svg .bad { fill: var(--bad); } svg .card { fill: var(--card); stroke: var(--rule); }</style>\n"
        f'<rect width="{WIDTH}" height="{height}" fill="var(--page)"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


def _text(html: str) -> str:
    return escape(unescape(TAGS.sub("", html)).strip())


def _header(page: str) -> str:
    name = re.search(r"<h1>(.*?)</h1>", page)
    return f'<text x="30" y="46" class="big">{_text(name[1]) if name else "run"}</text>'


def _card(x: float, y: float, width: float, height: float) -> str:
    return f'<rect class="card" x="{x}" y="{y}" width="{width}" height="{height}" rx="12"/>'


def _tiles(page: str) -> list[str]:
    tile = r'<dt>(.*?)</dt><dd class="big">(.*?)</dd><dd class="note (\w*)">(.*?)</dd>'
    tiles = [found for found in re.findall(tile, page) if found[0] not in LEFT_OUT]
    width = (WIDTH - 60 - 14 * (len(tiles) - 1)) / len(tiles)
    drawn = []
    for i, (name, value, colour, note) in enumerate(tiles):
        x = 30 + i * (width + 14)
        drawn += [_card(x, 70, width, 100), f'<text class="name" x="{x + 16}" y="96">{_text(name)}</text>']
        drawn += [f'<text class="big" x="{x + 16}" y="128">{_text(value)}</text>']
        drawn += [f'<text class="{colour}" x="{x + 16}" y="152">{_text(note)}</text>']
    return drawn


def _charts(page: str) -> list[str]:
    figures = re.findall(r'<figure class="card">.*?<h3>(.*?)</h3>(.*?)</figcaption>(<svg.*?</svg>)', page, re.DOTALL)
    drawn = []
    for i, (title, keys, chart) in enumerate(figures[:2]):
        x = 30 + i * (CHART + 40)
        chart = re.sub(r'<g class="hover">.*?</g>\n?', "", chart, flags=re.DOTALL)
        chart = chart.replace("<svg", f'<svg x="{x + 10}" y="232" width="{CHART - 20}" height="260"', 1)
        drawn += [_card(x, 190, CHART, 310), f'<text class="title" x="{x + 20}" y="218">{_text(title)}</text>']
        drawn += [_legend(keys, x + CHART - 20), chart]
    return drawn


def _legend(keys: str, right: float) -> str:
    """Return the names of a chart's curves, each in the colour of its curve, in one line left of ``right``."""
    found = re.findall(r'<i style="background:(.*?)"></i>(.*?)</span>', keys)
    places = [right - LEGEND * (len(found) - i) for i in range(len(found))]
    return "\n".join(
        f'<text x="{x}" y="218" style="fill:{colour}">— {_text(name)}</text>'
        for x, (colour, name) in zip(places, found, strict=True)
    )


def _examples(page: str) -> tuple[list[str], float]:
    """Return the filled examples, two a row, under the line that says how they were chosen, and where they end."""
    note = re.search(r'<p class="small soft">(.*?)</p><div class="examples">', page)
    drawn, y = [f'<text class="name" x="30" y="528">{_text(note[1]) if note else ""}</text>'], 544.0
    blocks = re.findall(r'<div class="card"><p>(.*?)</div></div>', page)[:4]
    for row in (blocks[:2], blocks[2:]):
        cards = [_example(block) for block in row]
        height = 46 + LINE * max((len(lines) for lines in cards), default=0)
        for i, lines in enumerate(cards):
            x = 30 + i * (CHART + 40)
            drawn.append(_card(x, y, CHART, height))
            for j, (style, line) in enumerate(lines):
                at = y + 34 + LINE * j + (0 if style == "title" else 6)
                drawn.append(f'<text class="{style}" x="{x + 20}" y="{at:g}">{escape(line)}</text>')
        y += height + 14
    return drawn, y


def _example(block: str) -> list[tuple[str, str]]:
    """Return the lines of a card, each with its style: the sentence, and its words, folded to the card's width."""
    sentence, _, guesses = block.partition("</p>")
    found = re.findall(r"<b>(.*?)</b>.*?<span>(.*?)</span>", guesses)
    answer = re.search(r"in the text: .*?(?=</p>)", guesses)
    words = " · ".join(f"{word} {share}" for word, share in found) + (f" ({answer[0]})" if answer else "")
    texts = (("title", sentence), ("name", words))
    return [
        (style, line) for style, html in texts for line in textwrap.wrap(unescape(TAGS.sub("", html)), FITTING[style])
    ]


if __name__ == "__main__":
    PICTURE.write_text(picture(Path(sys.argv[1]).read_text(encoding="utf-8")), encoding="utf-8")
    print(PICTURE)
