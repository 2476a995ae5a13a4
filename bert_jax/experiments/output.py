"""Writes the results of an ablation or a sweep: tables as Markdown and JSON, a page, and a picture."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.experiments.nouns import Tables, VariantSummary
from bert_jax.experiments.pictures import note
from bert_jax.reporting import page
from bert_jax.reporting.chart_style import ERROR_BARS
from bert_jax.reporting.error_bars import Figure, picture, section
from bert_jax.storage import files

_TextTable = tuple[tuple[str, ...], list[tuple[str, ...]]]  # the heading and the rows
# A paragraph or a heading, such as "## More"; a table; or names with their meanings.
Block = str | _TextTable | Mapping[str, str]
SPREAD = "Cells are the mean ± the standard deviation (n - 1) over the seeds; one seed has no deviation."
NOTE = (
    "A difference is the variant's mean minus that of the first; its standard error is that of two independent means"
    " (Welch). It is beyond the noise if it exceeds the error times Student's t for 95 % and so few seeds (4.3 for two"
    " alike, 2.8 for three, 2.3 for five); where nothing differs, about 1 in 20 or fewer do by chance. One seed cannot"
    " tell. Pictures call it shown if, besides, the bars of two standard errors around the two means do not overlap."
)


def overview(tables: Tables, baselines: Mapping[str, str]) -> _TextTable:
    """Return the main table: a row for each variant, a column for each metric, and a row of baselines if there are any.

    ``baselines``: metric -> the scores that are reached without learning, as text.
    """
    variants = dict.fromkeys(row.variant for rows in tables.values() for row in rows)
    summaries = {(metric, row.variant): row for metric, rows in tables.items() for row in rows}
    lines = []
    for variant in variants:
        rows = [summaries.get((metric, variant)) for metric in tables]
        lines.append((variant, str(max(row.seeds for row in rows if row)), *map(_mean, rows)))
    if baselines:
        lines.append(("without learning", "", *(baselines.get(metric, "") for metric in tables)))
    return ("variant", "seeds", *tables), lines


def _mean(row: VariantSummary | None) -> str:
    if row is None:
        return ""
    return f"{row.mean:.4f}" + ("" if row.spread is None else f" ± {row.spread:.4f}")


def differences(tables: Tables) -> _TextTable:
    """Return the table of differences: a row for each metric and each variant that is compared with the first."""
    lines: list[tuple[str, ...]] = []
    for metric, rows in tables.items():
        for row in rows:
            if row.difference is not None:
                error = "" if row.standard_error is None else f"{row.standard_error:.4f}"
                lines.append((metric, f"{row.variant} - {row.reference}", f"{row.difference:+.4f}", error, row.verdict))
    return ("metric", "variants", "difference", "standard error", "verdict"), lines


def as_data(tables: Tables) -> dict[str, list[dict[str, Any]]]:
    """Return the tables as plain data that JSON can hold."""
    return {
        metric: [
            dataclasses.asdict(row) | {"beyond_noise": row.beyond_noise, "bar": row.bar, "shown": row.shown}
            for row in rows
        ]
        for metric, rows in tables.items()
    }


def markdown(table: _TextTable) -> str:
    """Return a table as Markdown."""
    head, rows = table
    lines = [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def as_markdown(blocks: Sequence[Block]) -> str:
    """Return blocks as Markdown."""
    parts = []
    for block in blocks:
        if isinstance(block, Mapping):
            parts.append("\n".join(f"- {name}: {line}" for name, line in block.items()))
        else:
            parts.append(block if isinstance(block, str) else markdown(block))
    return "\n\n".join(parts) + "\n"


def _as_html(block: Block) -> str:
    if isinstance(block, Mapping):
        return page.table(("column", "what it is"), list(block.items()), numbers_from=2)
    if not isinstance(block, str):
        return page.table(*block)
    mark, _, title = block.partition(" ")
    tag, text = (f"h{len(mark)}", title) if set(mark) == {"#"} else ("p", block)
    return f"<{tag}>{page.as_html(text)}</{tag}>"


def write(
    workdir: str, blocks: Sequence[Block], record: Mapping[str, Any], figures: Sequence[Figure], main: Sequence[Figure]
) -> str:
    """Write ``table.md``, ``table.json``, ``report.html`` and ``picture.svg``; return the text for the terminal.

    Args:
      blocks: the first is the title, as a heading.
      record: the content of ``table.json``.
      figures: they are on the page.
      main: they are in the picture.
    """
    folder, text, title = files.as_path(workdir), as_markdown(blocks), str(blocks[0]).lstrip("# ")
    files.write_text(folder / "table.md", text)
    files.write_text(folder / "table.json", json.dumps(record, indent=2) + "\n")
    first, *others = map(_as_html, blocks)
    body = "\n".join([first, section(figures, note(figures)), *others])
    files.write_text(folder / "report.html", page.page(title, body, page.STYLE + ERROR_BARS))
    files.write_text(folder / "picture.svg", picture(title, main, note(main)))
    return f"{text}\ntables: {folder / 'table.md'}, {folder / 'table.json'}; pictures: " + (
        f"{folder / 'report.html'}, {folder / 'picture.svg'}"
    )
