"""Reads the texts to encode, from a file with one text on each line or from columns of any reader of examples."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from bert_jax.configuration import build, nearest
from bert_jax.errors import UserError
from bert_jax.examples.columns import MISSING, select
from bert_jax.examples.reading import BadRecord, DataRecord, few_bad, need, plain_name, text_lines
from bert_jax.examples.values import is_blank, is_unicode, text, words
from bert_jax.parts import catalogue

LINES = "lines"  # the format that needs no reader: one text on each line
_FORMATS = {
    ".txt": LINES,
    ".tsv": "delimited",
    ".csv": "delimited",
    ".json": "jsonl",
    ".jsonl": "jsonl",
    ".conll": "conll",
}


@dataclasses.dataclass(frozen=True)
class Item:
    """One text, or a pair of texts."""

    id: str
    text: str
    pair: str | None = None


@dataclasses.dataclass(frozen=True)
class Input:
    """A file of texts, and how to read it.

    Attributes:
      format: a reader of ``bert_jax.examples``, or "lines" (blank lines are skipped). If "", the ending decides.
      column: the column that holds the text, or a list of words, which are joined by spaces. If "", it is "text".
      id_column: the column that holds the ids. If "", the id is the number of the line or row, from 1.
    """

    path: str
    format: str = ""
    column: str = ""
    pair_column: str = ""
    id_column: str = ""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # options of the reader
    bad_examples: Literal["error", "skip"] | None = None  # None: error; the command has no flag --bad_examples

    @property
    def form(self) -> str:
        """Return the name of the format; "" if neither ``format`` nor the ending of the path says it."""
        return self.format or _FORMATS.get(os.path.splitext(plain_name(self.path).lower())[1], "")


def check_columns(sources: Sequence[Input]) -> None:
    """Raise ``UserError`` if a flag names a column or an option of a reader, and all files are plain lines."""
    names = ("column", "pair_column", "id_column", "options")
    given = [f"--{name}" for name in names if any(getattr(one, name) for one in sources)]
    if given and all(one.form == LINES for one in sources):
        raise UserError(
            f"{sources[0].path} is read a text a line, and has no columns; leave out {' and '.join(given)}, or name "
            "its --format"
        )


def read_texts(source: Input, note: Callable[[str], None] = lambda line: None) -> list[Item]:
    """Return the texts in order, without the bad texts; ``note`` is called with a line about these.

    Raises:
      UserError: there is no such file, no text, an unknown format, option or column, or a bad text.
    """
    items = list(_items(source))
    texts = [item for item in items if isinstance(item, Item)]
    if bad := [item for item in items if isinstance(item, BadRecord)]:
        line = f"{len(bad):,} of {len(bad) + len(texts):,} texts are bad: {few_bad(bad)}"
        if source.bad_examples != "skip":
            other = ", or give --bad_examples=skip" if source.bad_examples else ""
            raise UserError(f"{line}; mend them{other}")
        note(f"left out: {line}")
    if not texts:
        said = "--input" if source.format == LINES and not source.column else "--input, --format and --column"
        raise UserError(f"{source.path} has no text; check {said}")
    return texts


def _items(source: Input) -> Iterator[Item | BadRecord]:
    form = source.form
    if not form:
        raise UserError(f"{source.path} does not say how it is written; give --format, one of {', '.join(_formats())}")
    if form == LINES:
        return _lines(need(source.path))
    if form not in _formats() and not catalogue.is_own(form):
        raise UserError(f"unknown --format {form!r}; {nearest(form, _formats())}")
    module = catalogue.find("examples", form, having="Reader")
    reader = build(module.Reader, source.options, "--options")
    records = reader.read(source.path if reader.named_splits else need(source.path))
    return (
        record if isinstance(record, BadRecord) else _example(source, record, str(number))
        for number, record in enumerate(records, 1)
    )


def _formats() -> list[str]:
    return [LINES, *catalogue.parts("examples", having="Reader")]


def _lines(path: str) -> Iterator[Item | BadRecord]:
    for number, line in text_lines(path):
        if not is_unicode(line):
            yield BadRecord(f"{path}:{number}", "is not UTF-8")
        elif not is_blank(line, "text"):
            yield Item(str(number), line)


def _example(source: Input, record: DataRecord, number: str) -> Item | BadRecord:
    values, column = {}, source.column or "text"
    for name in filter(None, (column, source.pair_column, source.id_column)):
        value = select(record, name)
        if value is MISSING:
            return BadRecord(record.where, f"has no column {name!r} ({nearest(name, map(str, record))})")
        if is_blank(value, "text"):
            return BadRecord(record.where, f"has an empty {name}")
        if not is_unicode(value):
            return BadRecord(record.where, f"has a {name} that is not UTF-8")
        values[name] = value
    try:
        found = values[column]
        joined = " ".join(words(found)) if isinstance(found, list | tuple) else text(found)
        pair = text(values[source.pair_column]) if source.pair_column else None
        own_id = text(values[source.id_column]) if source.id_column else number
        return Item(own_id, joined, pair)
    except ValueError as error:
        return BadRecord(record.where, f"has {error}")
