"""Writes what an ablation or a sweep found: tables as Markdown and JSON, a page, and a picture."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.experiments import drawing
from bert_jax.experiments.pictures import Figure
from bert_jax.reporting import page
from bert_jax.storage import files

Page = tuple[tuple[str, ...], list[tuple[str, ...]]]  # the heading and the rows of a table, as text
Block = str | Page | Mapping[str, str]  # a paragraph or a heading, such as "## More"; a table; names with what they are


def markdown(table: Page) -> str:
    """Return a table as Markdown."""
    head, rows = table
    lines = [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def text_of(blocks: Sequence[Block]) -> str:
    """Return blocks as Markdown."""
    parts = []
    for block in blocks:
        if isinstance(block, Mapping):
            parts.append("\n".join(f"- {name}: {line}" for name, line in block.items()))
        else:
            parts.append(block if isinstance(block, str) else markdown(block))
    return "\n\n".join(parts) + "\n"


def _html_of(block: Block) -> str:
    if isinstance(block, Mapping):
        return page.table(("column", "what it is"), list(block.items()), numbers_from=2)
    if not isinstance(block, str):
        return page.table(*block)
    mark, _, title = block.partition(" ")
    tag, text = (f"h{len(mark)}", title) if set(mark) == {"#"} else ("p", block)
    return f"<{tag}>{page.as_html(text)}</{tag}>"


def write(
    workdir: str,
    blocks: Sequence[Block],
    record: Mapping[str, Any],
    figures: Sequence[Figure],
    shown: Sequence[Figure],
) -> str:
    """Write ``table.md``, ``table.json``, ``report.html`` and ``picture.svg``; return the text for the terminal.

    Args:
      blocks: the first is the title, as a heading.
      record: what ``table.json`` holds.
      figures: those of the page.
      shown: those of the picture.
    """
    folder, text, title = files.as_path(workdir), text_of(blocks), str(blocks[0]).lstrip("# ")
    files.write_text(folder / "table.md", text)
    files.write_text(folder / "table.json", json.dumps(record, indent=2) + "\n")
    first, *others = map(_html_of, blocks)
    body = "\n".join([first, drawing.section(figures), *others])
    files.write_text(folder / "report.html", page.page(title, body, page.STYLE + drawing.STYLE))
    files.write_text(folder / "picture.svg", drawing.picture(title, shown))
    return f"{text}\ntables: {folder / 'table.md'}, {folder / 'table.json'}; pictures: " + (
        f"{folder / 'report.html'}, {folder / 'picture.svg'}"
    )
