"""Draws the picture of README.md from the report of a run: ``python -m tests.docs.picture WORKDIR/report.html``.

It has the headline figures, the first chart and filled examples of the page, in a column that a phone can show, as SVG
without scripts.
"""

from __future__ import annotations

import re
import sys
import textwrap
from html import unescape
from pathlib import Path
from xml.sax.saxutils import escape

PICTURE = Path(__file__).resolve().parents[2] / "bert_jax" / "reporting" / "quickstart.svg"
WIDTH, CARD, LEGEND, EXAMPLES = 660, 620, 94, 3
LINE, FITTING = 25, {"title": 58, "name": 74}  # pixels of a line, and the characters that fit into one
LEFT_OUT = ("time", "steps")  # say more about the machine and the recipe than about the result
TAGS = re.compile(r"<[^>]+>")


def picture(page: str) -> str:
    """Return the SVG for a page that ``reporting.report`` wrote."""
    style = re.search(r"<style>\n(.*?)</style>", page, re.DOTALL)
    assert style, "the page has no style"
    colours = " ".join(line for line in style[1].splitlines()[:6] if "--" in line or "root" in line)
    rules = "\n".join(line for line in style[1].splitlines() if re.match(r"svg [^{]", line))
    examples, end = _examples(page)
    body = [_header(page), *_tiles(page), *_chart(page), *examples]
    height = f"{end + 10:g}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'font-family="system-ui, sans-serif">\n'
        f"<style>{colours}\n{rules}\n"
        "svg .name { font-size: 15px; } svg .big { font-size: 27px; font-weight: 650; fill: var(--text); }\n"
        "svg .title { font-size: 18px; font-weight: 600; fill: var(--text); } svg .good { fill: var(--good); }\n"
        "svg .bad { fill: var(--bad); } svg .chart text { font-size: 14px; }\n"
        "svg .card { fill: var(--card); stroke: var(--rule); }</style>\n"
        f'<rect width="{WIDTH}" height="{height}" fill="var(--page)"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


def _text(html: str) -> str:
    return escape(unescape(TAGS.sub("", html)).strip())


def _header(page: str) -> str:
    name = re.search(r"<h1>(.*?)</h1>", page)
    return f'<text x="20" y="46" class="big" style="font-size:21px">{_text(name[1]) if name else "run"}</text>'


def _card(x: float, y: float, width: float, height: float) -> str:
    return f'<rect class="card" x="{x}" y="{y}" width="{width}" height="{height}" rx="12"/>'


def _tiles(page: str) -> list[str]:
    tile = r'<dt>(.*?)</dt><dd class="big">(.*?)</dd><dd class="note (\w*)">(.*?)</dd>'
    tiles = [found for found in re.findall(tile, page) if found[0] not in LEFT_OUT]
    width = (CARD - 10 * (len(tiles) - 1)) / len(tiles)
    drawn = []
    for i, (name, value, colour, note) in enumerate(tiles):
        x = 20 + i * (width + 10)
        lines = [("", 94, _text(name).removesuffix(", held-out")), ("big", 126, _text(value))]
        lines += [(colour, 150 + 18 * j, line) for j, line in enumerate(textwrap.wrap(_text(note), 26))]
        drawn += [_card(x, 70, width, 112)]
        drawn += [f'<text class="{style}" x="{x + 14:g}" y="{y}">{line}</text>' for style, y, line in lines]
    return drawn


def _chart(page: str) -> list[str]:
    found = re.search(r'<figure class="card">.*?<h3>(.*?)</h3>(.*?)</figcaption>(<svg.*?</svg>)', page, re.DOTALL)
    assert found, "the page has no chart"
    title, keys, chart = found.groups()
    chart = re.sub(r'<g class="hover">.*?</g>\n?', "", chart, flags=re.DOTALL)
    chart = chart.replace("<svg", f'<svg class="chart" x="30" y="236" width="{CARD - 20}" height="290"', 1)
    heading = f'<text class="title" x="40" y="224">{_text(title)}</text>'
    return [_card(20, 196, CARD, 338), heading, _legend(keys, CARD), chart]


def _legend(keys: str, right: float) -> str:
    """Return the names of a chart's curves, each in the colour of its curve, in one line left of ``right``."""
    found = re.findall(r'<i style="background:(.*?)"></i>(.*?)</span>', keys)
    places = [right - LEGEND * (len(found) - i) for i in range(len(found))]
    return "\n".join(
        f'<text x="{x}" y="224" class="name" style="fill:{colour}">— {_text(name)}</text>'
        for x, (colour, name) in zip(places, found, strict=True)
    )


def _examples(page: str) -> tuple[list[str], float]:
    """Return the first filled examples, under a heading, and where they end."""
    drawn, y = (
        ['<text class="name" x="20" y="564">Held-out sentences, and the words that the model puts in</text>'],
        580.0,
    )
    for block in re.findall(r'<div class="card"><p>(.*?)</div></div>', page)[:EXAMPLES]:
        lines = _example(block)
        height = 24 + LINE * len(lines)
        drawn.append(_card(20, y, CARD, height))
        for j, (style, line) in enumerate(lines):
            drawn.append(f'<text class="{style}" x="40" y="{y + 32 + LINE * j:g}">{escape(line)}</text>')
        y += height + 12
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
