"""Formats the result of an inspection: as lines for a terminal, as ``report.html``, and as a part of the data card."""

from __future__ import annotations

import os
from collections.abc import Iterator
from html import escape
from typing import Any

from bert_jax.corpora.card import CARD, write_card
from bert_jax.corpora.privacy import private_manifest
from bert_jax.corpora.store import Corpus
from bert_jax.errors import UserError
from bert_jax.inspection.check import Check
from bert_jax.inspection.inspect import Inspection
from bert_jax.reporting.charts import Chart, Series, svg
from bert_jax.reporting.formats import count
from bert_jax.reporting.page import page, section, table
from bert_jax.storage import files

FILE = "report.html"
COLOURS = {"ok": "good", "warn": "warn", "bad": "bad", "skip": "neutral"}


def as_lines(found: Inspection) -> Iterator[str]:
    """Yield a line for each check, followed by indented lines with what to do and examples of text."""
    train, held = (found.corpus["splits"][name] for name in ("train", "heldout"))
    name, documents = found.corpus["fingerprint"][:12], train["num_documents"]
    yield (
        f"corpus {name}: {documents:,} documents, {train['num_tokens']:,} tokens to train on,"
        f" {held['num_tokens']:,} held out"
    )
    for check in found.checks:
        yield f"{check.status:<5}{check.name.replace('_', ' ')}: {check.figure}"
        if check.fix:
            yield f"       -> {check.fix}"
        if check.status != "ok":
            yield from (f"       {label}: {text}" for label, text in check.text)
    yield f"verdict: {found.verdict}"


def write_report(found: Inspection, folder: str | os.PathLike[str]) -> str:
    """Write ``folder/report.html``, a page that needs no other files, and return its path."""
    path = files.as_path(folder) / FILE
    name = "Corpus" if found.corpus["private"] else os.path.basename(found.corpus["path"].rstrip("/")) or "Corpus"
    train = found.corpus["splits"]["train"]
    facts = f"{train['num_documents']:,} documents, {train['num_tokens']:,} tokens to train on"
    badge = f'<span class="badge {COLOURS[found.verdict]}">{found.verdict}</span>'
    header = (
        f'<header>\n<div class="line"><h1>{escape(name)}</h1>{badge}</div>\n'
        f'<p class="soft">{escape(facts)} · fingerprint {found.corpus["fingerprint"][:12]}</p>\n</header>'
    )
    body = "\n".join(
        (
            header,
            section("Verdicts", _verdicts(found.checks)),
            section("Pictures", f'<div class="charts">\n{"".join(_figures(found))}\n</div>'),
            section("Repeated lines", _texts(found.checks)),
        )
    )
    files.write_text(path, page(f"{name} · bert_jax inspection", body))
    return os.fspath(path)


def check_card(corpus: str | os.PathLike[str]) -> None:
    """Raise ``UserError`` if ``update_card`` cannot write the card because ``corpus`` is on an object store."""
    if files.is_remote(corpus):
        raise UserError(f"--card cannot change {corpus}: a committed folder stays as it is; build it again, or copy it")


def update_card(found: Inspection, corpus: str | os.PathLike[str]) -> str:
    """Rewrite ``card.md`` of the corpus with the result of the inspection, and return its path."""
    path = files.as_path(corpus) / CARD
    manifest = Corpus(corpus).manifest
    manifest = private_manifest(manifest) if found.corpus["private"] else manifest
    files.write_text(path, write_card(manifest, found.as_record()))
    return os.fspath(path)


def _verdicts(checks: tuple[Check, ...]) -> str:
    lines = "".join(
        f'<tr><th scope="row">{escape(check.name.replace("_", " "))}</th>'
        f'<td><span class="badge {COLOURS[check.status]}">{check.status}</span></td>'
        f'<td class="wrap">{escape(check.figure)}</td><td class="wrap">{escape(check.fix)}</td></tr>\n'
        for check in checks
    )
    head = "".join(f'<th scope="col">{name}</th>' for name in ("check", "", "measured", "what to do"))
    return f'<div class="card scroll"><table><thead><tr>{head}</tr></thead><tbody>\n{lines}</tbody></table></div>'


def _texts(checks: tuple[Check, ...]) -> str:
    rows = [[check.name.replace("_", " "), label, text] for check in checks for label, text in check.text]
    return (
        f'<div class="card">{table(["check", "how often", "starts with"], rows, numbers_from=9)}</div>' if rows else ""
    )


def _figures(found: Inspection) -> Iterator[str]:
    by_name = {check.name: check for check in found.checks}
    yield _histogram("Sentences by length, tokens", by_name["sentences"].facts["histogram"])
    yield _histogram("Documents by length, tokens", by_name["documents"].facts["histogram"])
    curve = Series("times", by_name["vocabulary_use"].facts["curve"], "train")
    yield _figure(
        Chart("Frequency of pieces by rank", (curve,), log_x=True, log_y=True, noisy=False, digits=0, x_name="rank"),
        " (log scales)",
    )
    if "padding" in by_name and by_name["padding"].facts:
        yield _padding(by_name["padding"].facts)


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


def _padding(facts: dict[str, Any]) -> str:
    """Return a chart with the share of padding for each row length, with one pair per row and with packed rows."""
    bars = []
    for length, values in facts.items():
        for label, key in (("one pair", "one_pair_a_row"), ("packed", "packed")):
            share = values[key]
            width = 100 * min(max(share, 0.0), 1.0)
            bars.append(
                f'<div class="guess"><b>{escape(f"{length} {label}")}</b><i style="width:{width:.1f}%"></i>'
                f"<span>{share:.1%}</span></div>"
            )
    pairs = " · ".join(f"{count(values['pairs'])} pairs at {length}" for length, values in facts.items())
    caption = f'<figcaption><h3>Padding of rows</h3><span class="legend">{escape(pairs)}</span></figcaption>'
    return f'<figure class="card">{caption}{"".join(bars)}</figure>'
