"""Finds out from the first bytes of a file that it is not plain text: HTML, XML, JSON or a table."""

from __future__ import annotations

import csv
import json
import re

from bert_jax.corpora.bad_text import BadTextError
from bert_jax.corpora.byte_ranges import EXTRACTED
from bert_jax.corpora.source import display_path

HTML = re.compile(r"\s*(?:<!--.*?-->\s*)?<(!doctype html|html|head|body|div|p|table|ul|h[1-6]|article)\b", re.I | re.S)
XML = re.compile(r"\s*(?:<\?xml|<mediawiki|<(?!s>)([a-zA-Z][\w:.-]*)(?:\s[^<>]*)?>.*</)", re.S)
NAME = r'(?:"[^"\n]{1,40}"|[\w.-]+)'
NAMES = re.compile(rf"{NAME}([,;\t|]){NAME}(?:\1{NAME})*")  # the header of a table
FIELDS = re.compile(r'(\t)|"([,;|])|([,;|])"')  # in the first row of a table without a header: where fields meet
_TABLES = (".csv.", ".tsv.")  # in the name of a file that is a table, with a dot after it
_FEWEST_ROWS, _FEWEST_UNNAMED = 4, 10  # of a table with a header, and of a table without a header
_ADVICE = {
    "HTML": "take the text out of it first",
    "XML": "take the text out of it first",
    "a MediaWiki dump": "take --config.corpus.source=mediawiki",
    "JSON": "take --config.corpus.source=jsonl",
    "a table": "take --config.corpus.source=hugging_face_dataset (extra datasets), with the table's folder as"
    " --config.corpus.options.name and a column as --config.corpus.options.text_column",
}


def other_format(head: bytes, path: str) -> BadTextError | None:
    """Return the error for a file that is not plain text; None if it seems to be, or if WikiExtractor wrote it.

    Args:
      head: the first bytes of the unpacked file ``path``.
    """
    if EXTRACTED.match(head):
        return None
    what = _format(head)
    name = path.rpartition("/")[2].lower() + "."
    if what is None and any(ending in name for ending in _TABLES) and re.search(rb"[,;\t|]", head.partition(b"\n")[0]):
        what = "a table"
    if what is None:
        return None
    message = f"{display_path(path)} is {what}, not plain text; {_ADVICE[what]}"
    return BadTextError(f"{path}@0", "not plain text", message)


def _format(head: bytes) -> str | None:
    text = head.decode("utf-8", "replace").removeprefix("\ufeff")
    if "<mediawiki" in text and XML.match(text):
        return "a MediaWiki dump"
    if HTML.match(text):
        return "HTML"
    if XML.match(text):
        return "XML"
    if is_json(text.lstrip()):
        return "JSON"
    return "a table" if _is_table(text) else None


def is_json(text: str) -> bool:
    """Return whether ``text`` begins with a JSON object, perhaps in an array; its end may be cut off."""
    if not re.match(r"(\[\s*)?\{\s*\"", text):
        return False
    try:
        json.JSONDecoder().raw_decode(text.lstrip("[ \t\r\n"))
    except ValueError:
        return re.match(r"(\[\s*)?\{\s*\"[^\"\n]+\"\s*:\s*[\[{\"\dtfn-]", text) is not None
    return True


def _is_table(text: str) -> bool:
    """Return whether ``text`` is rows with as many fields each, perhaps below a header; its last row may be cut."""
    first = text.partition("\n")[0]
    names = NAMES.fullmatch(first.rstrip("\r"))
    found = names or FIELDS.search(first)
    if found is None:
        return False
    mark = next(filter(None, found.groups()))
    lines = text.rpartition("\n")[0].splitlines()  # the reader refuses line ends within a line
    rows = [row for row in csv.reader(lines, delimiter=mark) if row]
    alike = bool(rows) and len({*map(len, rows[:-1])}) == 1 and all(row[0].strip() for row in rows)
    return alike and len(rows[0]) > 1 and len(rows) >= (_FEWEST_ROWS if names else _FEWEST_UNNAMED)
