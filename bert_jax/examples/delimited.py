"""The reader ``delimited``: reads tables of separated values, such as TSV or CSV."""

from __future__ import annotations

import csv
import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from bert_jax.errors import UserError
from bert_jax.examples.reading import BadRecord, DataRecord, other_delimiter, plain_name, text_lines, typed
from bert_jax.examples.values import is_unicode

_FIELD_CHARACTERS = 1 << 30  # Python's own limit of 131,072 is too low for long documents
# The first line of some files of Excel; it names the delimiter.
SEPARATOR = re.compile('"?sep=(.)"?[,;\t]*', re.IGNORECASE)


class _Row(NamedTuple):
    """A row of a table: its fields, or the reason why the row is bad; and its first and last line."""

    first: int
    last: int
    fields: list[str] | str


@dataclasses.dataclass(frozen=True)
class Reader:
    r"""Reads each row of a table as a record of strings. Blank lines are skipped.

    A row is bad if the number of its fields is not the number of columns. Spaces around the names of columns are
    dropped. A field that begins with a quote is quoted: it ends at the next quote that is not doubled, and may hold
    delimiters and line ends. If more rows can be read with ``\"`` for a quote inside, that is how the file is read.
    A table whose delimiter is not a comma has no quoting if more rows are lost by quoting than have a quoted field,
    as in GLUE's tables.
    """

    named_splits = False

    delimiter: str = ""  # if "", what a first line "sep=;" says, else a comma in a .csv file, a tab in any other file
    header: bool = True  # whether the first line has the names of the columns; otherwise these are "0", "1", ...
    # "on": a field that begins with a quote is quoted; "auto": on, but off if that does not fit the file
    quoting: Literal["auto", "on", "off"] = "auto"
    encoding: str = "utf-8"  # a byte order mark decides in its place

    def __post_init__(self) -> None:
        mark = typed(self.delimiter)
        if len(mark) > 1 or mark in ('"', "\\", "\r", "\n"):
            raise UserError(
                f"config.data.options.delimiter is {self.delimiter!r}; one character that is no quote, line end or "
                r"backslash is needed, such as ';', or '\t' for a tab"
            )

    def read(self, path: str) -> Iterator[DataRecord | BadRecord]:
        """Yield the rows of ``path``."""
        names: list[str] = []
        rows = self._rows(path)
        for row in rows:
            if isinstance(row.fields, str):
                yield BadRecord(f"{path}:{row.first}", row.fields)
                continue
            if not names:
                names = _names(row.fields, self.header, path)
                widths = {len(other.fields) for other in rows if not isinstance(other.fields, str) and other is not row}
                if self.header and len(widths) == 1 and widths != {len(names)}:
                    raise UserError(
                        f"{path} has {len(names)} fields in its first line and {widths.pop()} in every other; the first"
                        " line has to name the columns: delete lines before it, or give every column a name"
                    )
                if self.header:
                    continue
            if len(row.fields) != len(names):
                yield BadRecord(f"{path}:{row.first}", f"has {len(row.fields)} fields where {len(names)} are needed")
                continue
            yield DataRecord(zip(names, row.fields, strict=True), f"{path}:{row.last}")

    def _rows(self, path: str) -> list[_Row]:
        """Return the rows of ``path`` as the quoting that fits the file cuts them."""
        lines = list(text_lines(path, self.encoding))
        delimiter = typed(self.delimiter) or ("," if plain_name(path).lower().endswith(".csv") else "\t")
        if lines and (named := SEPARATOR.fullmatch(lines[0][1])):
            delimiter = typed(self.delimiter) or named[1]
            del lines[0]
        plain = self._headed([_Row(number, number, line.split(delimiter)) for number, line in lines if line])
        if self.quoting == "off" or not any('"' in line for _, line in lines):
            self._check_delimiter(plain, delimiter, plain, path)
            return plain
        # In "text, label" fields begin after the space.
        spaced = self.header and delimiter != " " and f"{delimiter} " in lines[0][1]
        escaped = any('\\"' in line for _, line in lines)
        quoted = (self._headed(_quoted(lines, delimiter, spaced, escapes)) for escapes in range(1 + escaped))
        rows = min(quoted, key=_lost)
        lost, lost_plain = _lost(rows), _lost(plain)
        self._check_delimiter(rows, delimiter, plain, path)
        if self.quoting == "auto" and delimiter != ",":
            opens = {number for number, line in lines if line.startswith('"') or f'{delimiter}"' in line}
            if sum(row.first in opens for row in _whole(rows)) <= lost - lost_plain:
                return plain
        if lost and not lost_plain:
            hint = "; if its quotes are text, --config.data.options.quoting=off reads it"
            rows = [row._replace(fields=row.fields + hint) if isinstance(row.fields, str) else row for row in rows]
        return rows

    def _headed(self, rows: list[_Row]) -> list[_Row]:
        """Return the rows, whose header gets an empty name for a column that it alone lacks.

        Such a column has numbers of rows, as R writes them before each row, or nothing after the last delimiter.
        """
        names, *others = [row.fields for row in rows if not isinstance(row.fields, str)] or [[]]
        if self.header and rows[1:] and {len(names) + 1} == {*map(len, others)}:
            if not any(fields[-1] for fields in others):
                return [rows[0]._replace(fields=[*names, ""]), *rows[1:]]
            numbers = {fields[0] for fields in others}
            if len(numbers) == len(others) and all(map(str.isdecimal, numbers)):
                return [rows[0]._replace(fields=["", *names]), *rows[1:]]
        return rows

    def _check_delimiter(self, rows: Sequence[_Row], delimiter: str, plain: Sequence[_Row], path: str) -> None:
        """Raise ``UserError`` if rows are lost and the header, whose fields are in ``plain``, has another delimiter."""
        first = plain[0].fields if plain and self.header else []
        if len(first) == 1 and (mark := other_delimiter(first[0])) and _lost(rows):
            raise UserError(
                f"{path} has rows that {delimiter!r} does not separate; if '{mark}' does, add"
                f" --config.data.options.delimiter='{mark}'"
            )


def _quoted(lines: Sequence[tuple[int, str]], delimiter: str, spaced: bool, escapes: int) -> list[_Row]:
    r"""Return the rows of a table with quotes.

    Args:
      spaced: whether spaces after a delimiter are dropped.
      escapes: whether a backslash before a quote, a delimiter or a backslash makes it text. Any other backslash stays.
    """
    csv.field_size_limit(_FIELD_CHARACTERS)
    texts = (f"{line}\n" for _, line in lines)
    if escapes:
        backslash = re.compile(rf'\\(["\\{re.escape(delimiter)}]?)')
        texts = (backslash.sub(lambda found: found[0] if found[1] else r"\\", text) for text in texts)
    escape = "\\" if escapes else None
    rows = csv.reader(texts, delimiter=delimiter, strict=True, skipinitialspace=spaced, escapechar=escape)
    result: list[_Row] = []
    done = 0
    while True:
        fields: list[str] | str
        try:
            fields = next(rows)
        except StopIteration:
            return result
        except csv.Error as error:
            fields = f"is not a row of a table with quotes ({error}"
            fields += f"; lines {lines[done][0]} to {lines[rows.line_num - 1][0]})" if rows.line_num > done + 1 else ")"
        if fields:
            result.append(_Row(lines[done][0], lines[rows.line_num - 1][0], fields))
        done = rows.line_num


def _whole(rows: Sequence[_Row]) -> list[_Row]:
    """Return the rows that have as many fields as the first row with fields."""
    good = [row for row in rows if not isinstance(row.fields, str)]
    return [row for row in good if len(row.fields) == len(good[0].fields)]


def _lost(rows: Sequence[_Row]) -> int:
    """Return the number of lines of the rows that are not whole."""
    return sum(row.last - row.first + 1 for row in rows) - sum(row.last - row.first + 1 for row in _whole(rows))


def _names(row: list[str], header: bool, path: str) -> list[str]:
    """Return the names of the columns; a column without a name is named by its number.

    Raises ``UserError`` if a name occurs twice or is not valid text.
    """
    if header and not is_unicode(row):
        raise UserError(
            f"the first line of {path} is not UTF-8; convert it, or name its encoding, such as "
            "--config.data.options.encoding=cp1252"
        )
    names = [(name.strip() if header else "") or str(i) for i, name in enumerate(row)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UserError(
            f"the first line of {path} names {', '.join(map(repr, twice))} more than once; if it is not a header set"
            " --config.data.options.header=False, else give every column a name of its own"
        )
    return names
