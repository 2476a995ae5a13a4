"""Writes the data card, the file ``card.md`` beside the manifest, which describes the corpus a model was trained on."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from typing import Any

from bert_jax.corpora.manifest import HELDOUT_DOCUMENTS
from bert_jax.corpora.privacy import is_private

CARD = "card.md"
Row = tuple[str, ...]


def write_card(manifest: Mapping[str, Any], inspection: Mapping[str, Any] | None = None) -> str:
    """Return the data card in Markdown. The same manifest and inspection give the same card.

    Args:
      manifest: the store's manifest, or what ``private_manifest`` leaves of it.
      inspection: ``Inspection.as_record()``, if the corpus was inspected.
    """
    lines = ["# Data card", "", _summary(manifest)]
    if notes := manifest.get("notes"):
        lines += ["", html.escape(notes, quote=False)]
    source = _facts(manifest["source"])
    columns = [
        (name, ", ".join(f"{key} {value}" for key, value in facts.items() if key not in ("dtype", "fingerprint")))
        for name, facts in manifest["columns"].items()
    ]
    hits = [
        (name.replace("_", " "), f"{count:,}")
        for group in ("private", "encoding")
        for name, count in manifest["text_hits"][group].items()
    ]
    of_hits = "Counted by pattern in the text as it was read: some hits are none, and some of what is there is missed."
    lines += _section("Sources", _table(("fact", "value"), source))
    lines += _section("Licence and dates", _table(("", ""), _rights(manifest, source)))
    lines += _section("Kept and dropped", _table(("", "count"), _counts(manifest)))
    lines += _section("Splits", _table(("split", "documents", "sentences", "tokens"), _splits(manifest)))
    lines += _section("Held-out documents", _heldout(manifest))
    lines += _section("Columns", _table(("beside the tokens", "made by"), columns))
    lines += _section("Personal data and encoding", [of_hits, "", *_table(("looks like", "places"), hits)])
    lines += _section("Inspection", _inspection(inspection))
    lines += _section("Identity", _table(("", ""), _identity(manifest)))
    return "\n".join(lines) + "\n"


def _summary(manifest: Mapping[str, Any]) -> str:
    splits = manifest["splits"].values()
    documents, tokens = (sum(split[key] for split in splits) for key in ("num_documents", "num_tokens"))
    private = " Text and paths are kept out of this card." if is_private(manifest) else ""
    return (
        f"A tokenized corpus for pretraining: {documents:,} documents, {tokens:,} tokens,"
        f" {manifest['text_bytes']:,} bytes of text.{private}"
    )


def _section(title: str, body: list[str]) -> list[str]:
    return ["", f"## {title}", "", *body] if body else []


def _table(head: Row, rows: Iterable[Row]) -> list[str]:
    """Return the lines of a table; none if it has no rows."""
    lines = [f"| {' | '.join(map(_cell, row))} |" for row in (head, *rows)]
    return [lines[0], "|" + "---|" * len(head), *lines[1:]] if lines[1:] else []


def _cell(text: str) -> str:
    """Return ``text`` as one line that stays inside its table cell, whatever characters it has."""
    return html.escape(" ".join(text.split()), quote=False).replace("\\", "\\\\").replace("|", "\\|")


def _facts(value: Any, name: str = "") -> list[tuple[str, str]]:
    """Return (dotted name, text) for each leaf of the nested ``value``; a list becomes one text."""
    if isinstance(value, Mapping):
        return [fact for key, inner in value.items() for fact in _facts(inner, f"{name}.{key}" if name else str(key))]
    if value in (None, "", [], ()):
        return []
    if isinstance(value, (list, tuple)):
        return [(name, ", ".join(map(str, value)))]
    return [(name, f"{value:,}" if type(value) is int else str(value))]


def _rights(manifest: Mapping[str, Any], source: list[tuple[str, str]]) -> list[Row]:
    """Return (label, text) for licence and dates, as the config or the source states them, or "not stated"."""
    rows: list[Row] = []
    for label, keys in (("licence", ("license",)), ("dates", ("dates", "revision"))):
        given = [manifest[key] for key in keys if manifest.get(key)]
        given += [f"{where}: {text}" for where, text in source if where.rpartition(".")[2] in keys]
        rows.append((label, "; ".join(given) or "not stated"))
    return rows


def _counts(manifest: Mapping[str, Any]) -> list[Row]:
    """Return the counts of documents that were kept, dropped and skipped, with the first place of skipped text."""
    kept = sum(split["num_documents"] for split in manifest["splits"].values())
    return [
        ("documents kept", f"{kept:,}"),
        *((f"dropped: {name.replace('_', ' ')}", f"{count:,}") for name, count in manifest["dropped"].items()),
        *(
            (f"skipped: {reason}", f"{facts['count']:,}, such as {facts['examples'][0]}")
            for reason, facts in manifest["skipped"].items()
        ),
    ]


def _splits(manifest: Mapping[str, Any]) -> list[Row]:
    keys = ("num_documents", "num_sentences", "num_tokens")
    return [(name, *(f"{facts[key]:,}" for key in keys)) for name, facts in manifest["splits"].items()]


def _heldout(manifest: Mapping[str, Any]) -> list[str]:
    if not (names := manifest.get(HELDOUT_DOCUMENTS)):
        return []
    total = manifest["splits"]["heldout"]["num_documents"]
    which = "All" if len(names) == total else f"The first {len(names):,} of {total:,}"
    return [f"{which}, in the order of the text:", "", *(f"- {_cell(name)}" for name in names)]


def _inspection(inspection: Mapping[str, Any] | None) -> list[str]:
    if inspection is None:
        return [
            "Not inspected, so its overlap with evaluation sets is not known (`bert-jax inspect --card --eval=...`)."
        ]
    checks = inspection["checks"]
    overlap = checks.get("evaluation_overlap")
    compared = f"{_cell(overlap['facts']['set'])}: {overlap['figure']}" if overlap else "none was compared"
    rows = [(name.replace("_", " "), check["status"], check["figure"]) for name, check in checks.items()]
    return [f"Overlap with evaluation sets: {compared}.", "", *_table(("check", "verdict", "measured"), rows)]


def _identity(manifest: Mapping[str, Any]) -> list[Row]:
    return [
        ("fingerprint", manifest["fingerprint"]),
        ("source fingerprint", manifest["source_fingerprint"]),
        ("vocabulary sha256", manifest["tokenizer_sha256"]),
        ("vocabulary", f"{manifest['vocab_size']:,} pieces"),
        ("versions", ", ".join(f"{name} {version}" for name, version in manifest["versions"].items())),
    ]
