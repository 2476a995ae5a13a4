"""Formats the result of an inspection: as lines for a terminal, and as ``report.html``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from html import escape

from bert_jax.inspection.check import Check
from bert_jax.inspection.inspect import Inspection
from bert_jax.reporting.charts import Chart, Series, svg
from bert_jax.reporting.page import as_html, page, section, table
from bert_jax.storage import files

FILE = "report.html"
COLOURS = {"ok": "good", "warn": "warn", "bad": "bad", "skip": "neutral"}


def as_lines(inspection: Inspection) -> Iterator[str]:
    """Yield a line for each check, followed by indented lines with what to do and examples of text."""
    train, held = (inspection.corpus["splits"][name] for name in ("train", "heldout"))
    name, documents = inspection.corpus["fingerprint"][:12], train["num_documents"]
    yield (
        f"corpus {name}: {documents:,} documents, {train['num_tokens']:,} tokens to train on,"
        f" {held['num_tokens']:,} held out"
    )
    for check in inspection.checks:
        yield f"{check.status:<5}{check.name.replace('_', ' ')}: {check.figure}"
        if check.fix:
            yield f"       -> {check.fix}"
        if check.status != "ok":
            yield from (f"       {label}: {text}" for label, text in check.text)
    yield f"verdict: {inspection.verdict}"


def write_report(inspection: Inspection, folder: str | os.PathLike[str]) -> str:
    """Write ``folder/report.html``, a page that needs no other files, and return its path."""
    path = files.as_path(folder) / FILE
    corpus, train = inspection.corpus, inspection.corpus["splits"]["train"]
    name = os.path.basename(corpus.get("path", "").rstrip("/")) or "Corpus"  # a private one has no path
    facts = f"{train['num_documents']:,} documents, {train['num_tokens']:,} tokens to train on"
    badge = f'<span class="badge {COLOURS[inspection.verdict]}">{inspection.verdict}</span>'
    header = (
        f'<header>\n<div class="line"><h1>{escape(name)}</h1>{badge}</div>\n'
        f'<p class="soft">{escape(facts)} · fingerprint {corpus["fingerprint"][:12]}</p>\n</header>'
    )
    body = "\n".join(
        (
            header,
            section("Verdicts", _verdicts(inspection.checks)),
            section("Pictures", f'<div class="charts">\n{"".join(_figures(inspection))}\n</div>'),
            section("Repeated lines", _texts(inspection.checks)),
        )
    )
    files.write_text(path, page(f"{name} · bert_jax inspection", body))
    return os.fspath(path)


def _verdicts(checks: tuple[Check, ...]) -> str:
    lines = "".join(
        f'<tr><th scope="row">{escape(check.name.replace("_", " "))}</th>'
        f'<td><span class="badge {COLOURS[check.status]}">{check.status}</span></td>'
        f'<td class="wrap">{escape(check.figure)}</td><td class="wrap">{as_html(check.fix)}</td></tr>\n'
        for check in checks
    )
    head = "".join(f'<th scope="col">{name}</th>' for name in ("check", "", "measured", "what to do"))
    return f'<div class="card scroll"><table><thead><tr>{head}</tr></thead><tbody>\n{lines}</tbody></table></div>'


def _texts(checks: tuple[Check, ...]) -> str:
    rows = [[check.name.replace("_", " "), label, text] for check in checks for label, text in check.text]
    return (
        f'<div class="card">{table(["check", "how often", "starts with"], rows, numbers_from=9)}</div>' if rows else ""
    )


def _figures(inspection: Inspection) -> Iterator[str]:
    yield _histogram("Sentences by length, tokens", inspection.check("sentences").facts["histogram"])
    yield _histogram("Documents by length, tokens", inspection.check("documents").facts["histogram"])
    curve = Series("times", inspection.check("vocabulary_use").facts["curve"], "train")
    yield _figure(
        Chart("Frequency of pieces by rank", (curve,), log_x=True, log_y=True, noisy=False, digits=0, x_name="rank"),
        " (log scales)",
    )


def _histogram(title: str, bins: list[list[int]]) -> str:
    """Return a chart of the bins ``[from, to, count]``: a curve along the outline of their bars."""
    points: list[tuple[float, float]] = []
    for low, high, n in bins:
        if not points:
            points = [(low, 0)]
        elif points[-1][0] != low:  # there are empty bins in between
            points += [(points[-1][0], 0), (low, 0)]
        points += [(low, n), (high, n)]
    points += [(points[-1][0], 0)] if points else []
    chart = Chart(title, (Series("count", points, "train"),), log_x=True, noisy=False, digits=0, x_name="length")
    return _figure(chart, " (log scale)")


def _figure(chart: Chart, scale: str) -> str:
    drawing = svg(chart)
    caption = f"<figcaption><h3>{escape(chart.title + scale)}</h3></figcaption>"
    return f'<figure class="card">{caption}{drawing}</figure>' if drawing else ""
