"""Writes the data card, the file ``card.md`` beside the manifest, which describes the corpus a model was trained on."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from typing import Any

from bert_jax.corpora.manifest import HELDOUT_DOCUMENTS
from bert_jax.corpora.privacy import is_private

CARD = "card.md"
UNSAID = "not stated"


def write_card(manifest: Mapping[str, Any], inspection: Mapping[str, Any] | None = None) -> str:
    """Return the data card in Markdown. The same manifest and inspection give the same card.

    Args:
      manifest: the store's manifest. These entries may be absent: ``license``, ``notes`` (as in the config), ``source``
        (how the source describes itself), ``dropped`` (reason -> count), ``text_hits`` (``corpora.hits.text_hits``),
        ``heldout_documents`` (the first names).
      inspection: ``Inspection.as_record()``, if the corpus was inspected.
    """
    source = manifest.get("source") or {}
    lines = ["# Data card", "", _summary(manifest)]
    if notes := manifest.get("notes"):
        lines += ["", html.escape(str(notes), quote=False)]
    lines += _part("Sources", _table(_facts(source), ("fact", "value")))
    lines += _part("Licence and dates", _table(_rights(manifest, source), ("", "")))
    lines += _part("Kept and dropped", _table(_counts(manifest), ("", "count")))
    lines += _part("Splits", _splits(manifest.get("splits") or {}))
    lines += _part("Held-out documents", _heldout(manifest))
    lines += _part("Columns", _table(_columns(manifest.get("columns") or {}), ("beside the tokens", "made by")))
    lines += _part("Personal data and encoding", _hits(manifest))
    lines += _part("Inspection", _inspection(inspection))
    lines += _part("Identity", _table(_identity(manifest), ("", "")))
    return "\n".join(lines) + "\n"


def _summary(manifest: Mapping[str, Any]) -> str:
    splits = manifest.get("splits") or {}
    documents, tokens = (sum(int(s.get(key, 0)) for s in splits.values()) for key in ("num_documents", "num_tokens"))
    text = manifest.get("text_bytes")
    size = f", {int(text):,} bytes of text" if text is not None else ""
    private = " Text and paths are kept out of this card." if is_private(manifest) else ""
    return f"A tokenized corpus for pretraining: {documents:,} documents, {tokens:,} tokens{size}.{private}"


def _part(title: str, body: list[str]) -> list[str]:
    return ["", f"## {title}", "", *body] if body else []


def _table(rows: list[tuple[str, str]], head: tuple[str, str]) -> list[str]:
    return [_row(head), "|---|---|", *map(_row, rows)] if rows else []


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(_cell(cell) for cell in cells)} |"


def _cell(text: str) -> str:
    """Return ``text`` as one line that stays inside its table cell, whatever characters it has."""
    return html.escape(" ".join(text.split()), quote=False).replace("\\", "\\\\").replace("|", "\\|")


def _facts(value: Any, name: str = "") -> list[tuple[str, str]]:
    """Return (dotted name, text) for each leaf of the nested ``value``; a list of plain values becomes one text."""
    if isinstance(value, Mapping):
        return [fact for key, inner in value.items() for fact in _facts(inner, f"{name}.{key}" if name else str(key))]
    if isinstance(value, (list, tuple)):
        if any(isinstance(inner, (Mapping, list, tuple)) for inner in value):
            return [fact for i, inner in enumerate(value) for fact in _facts(inner, f"{name}[{i}]")]
        return [(name, ", ".join(map(str, value)))] if value else []
    return [(name, f"{value:,}" if type(value) is int else str(value))] if value not in (None, "") else []


def _rights(manifest: Mapping[str, Any], source: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (label, text) for licence and dates, as the config or the source states them, or "not stated"."""
    rows = []
    for label, keys in (("licence", ("license", "licence")), ("dates", ("date", "dates", "revision", "snapshot"))):
        given = [str(manifest[key]) for key in keys if manifest.get(key)]
        given += [f"{where}: {text}" for where, text in _facts(source) if where.rpartition(".")[2] in keys]
        rows.append((label, "; ".join(given) or UNSAID))
    return rows


def _counts(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    splits = manifest.get("splits") or {}
    kept = sum(int(split.get("num_documents", 0)) for split in splits.values())
    dropped = _facts(manifest.get("dropped") or {})
    return [
        ("documents kept", f"{kept:,}"),
        *((f"dropped: {name.replace('_', ' ')}", count) for name, count in dropped),
        *(_skipped(reason, facts) for reason, facts in (manifest.get("skipped") or {}).items()),
    ]


def _skipped(reason: str, facts: Mapping[str, Any]) -> tuple[str, str]:
    """Return the row of text that could not be read, with the first place where that was."""
    first = f", such as {facts['examples'][0]}" if facts.get("examples") else ""
    return f"skipped: {reason}", f"{int(facts.get('count', 0)):,}{first}"


def _splits(splits: Mapping[str, Mapping[str, Any]]) -> list[str]:
    keys = ("num_documents", "num_sentences", "num_tokens")
    rows = [_row((name, *(f"{int(facts.get(key, 0)):,}" for key in keys))) for name, facts in splits.items()]
    return ["| split | documents | sentences | tokens |", "|---|---|---|---|", *rows] if rows else []


def _heldout(manifest: Mapping[str, Any]) -> list[str]:
    if not (names := manifest.get(HELDOUT_DOCUMENTS)):
        return []
    total = int(manifest["splits"]["heldout"]["num_documents"])
    which = "All" if len(names) == total else f"The first {len(names):,} of {total:,}"
    return [f"{which}, in the order of the text:", "", *(f"- {_cell(name)}" for name in names)]


def _columns(columns: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    return [
        (name, ", ".join(f"{key} {value}" for key, value in facts.items() if key not in ("dtype", "fingerprint")))
        for name, facts in columns.items()
    ]


def _hits(manifest: Mapping[str, Any]) -> list[str]:
    hits = manifest.get("text_hits") or {}
    rows = [
        (name.replace("_", " "), f"{count:,}")
        for group in ("private", "encoding")
        for name, count in (hits.get(group) or {}).items()
    ]
    if not rows:
        return ["Not counted."]
    return [
        "Counted by pattern in the text as it was read: some hits are none, and some of what is there is missed.",
        "",
        *_table(rows, ("looks like", "places")),
    ]


def _inspection(inspection: Mapping[str, Any] | None) -> list[str]:
    if inspection is None:
        return [
            "Not inspected, so its overlap with evaluation sets is not known (`bert-jax inspect --card --eval=...`)."
        ]
    return list(_inspection_lines(inspection))


def _inspection_lines(inspection: Mapping[str, Any]) -> Iterator[str]:
    checks = inspection.get("checks") or {}
    overlap = checks.get("evaluation_overlap")
    if overlap is None:
        yield "Overlap with evaluation sets: none was compared."
    else:
        yield f"Overlap with evaluation sets: {_cell(overlap['facts']['set'])}: {overlap['figure']}."
    yield ""
    yield from ("| check | verdict | measured |", "|---|---|---|")
    for name, check in checks.items():
        yield _row((name.replace("_", " "), check["status"], check["figure"]))


def _identity(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    versions = ", ".join(f"{name} {version}" for name, version in (manifest.get("versions") or {}).items())
    rows = [
        ("fingerprint", manifest.get("fingerprint")),
        ("source fingerprint", manifest.get("source_fingerprint")),
        ("vocabulary sha256", manifest.get("tokenizer_sha256")),
        ("vocabulary", f"{manifest['vocab_size']:,} pieces" if "vocab_size" in manifest else None),
        ("versions", versions),
    ]
    return [(name, str(value)) for name, value in rows if value]
