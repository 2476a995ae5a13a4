"""The reader ``delimited``: reads tables of separated values, such as TSV or CSV."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Iterator
from typing import Literal

from bert_jax.errors import UserError
from bert_jax.examples.reading import Bad, Record, plain_name, text_lines
from bert_jax.examples.values import is_unicode

FIELD_CHARACTERS = 1 << 30  # Python's own limit of 131,072 is too low for long documents


@dataclasses.dataclass(frozen=True)
class Reader:
    """Reads each row of a table as a record of strings. Blank lines are skipped.

    A row is bad if the number of its fields is not the number of columns. GLUE's tables have headers (except CoLA's)
    and no quoting.
    """

    named_splits = False

    delimiter: str = ""  # if "", a comma in a .csv file, a tab in any other file
    header: bool = True  # whether the first line has the names of the columns; otherwise these are "0", "1", ...
    quoting: Literal["auto", "on", "off"] = "auto"  # "auto": on if the delimiter is a comma, otherwise off
    encoding: str = "utf-8"  # a byte order mark is ignored

    def __post_init__(self) -> None:
        if len(self.delimiter) > 1:
            raise UserError(
                f"config.data.options.delimiter is {self.delimiter!r}; one character is needed, such as '\\t'"
            )

    def read(self, path: str) -> Iterator[Record | Bad]:
        """Yield the rows of ``path``."""
        names: list[str] = []
        for number, row in self._rows(path):
            where = f"{path}:{number}"
            if isinstance(row, str):
                yield Bad(where, row)
                continue
            if not names:
                names = _names(row, self.header, path)
                if self.header:
                    continue
            if len(row) != len(names):
                yield Bad(where, f"has {len(row)} fields where {len(names)} are needed")
                continue
            yield Record(zip(names, row, strict=True), where)

    def _rows(self, path: str) -> Iterator[tuple[int, list[str] | str]]:
        """Yield (number of the row's last line, fields) for each row; for a bad row, a message in place of fields."""
        delimiter = self.delimiter or ("," if plain_name(path).lower().endswith(".csv") else "\t")
        lines = text_lines(path, self.encoding)
        if self.quoting == "on" or (self.quoting == "auto" and delimiter == ","):
            yield from _quoted(lines, delimiter)
        else:
            yield from ((number, line.split(delimiter)) for number, line in lines if line)


def _quoted(lines: Iterator[tuple[int, str]], delimiter: str) -> Iterator[tuple[int, list[str] | str]]:
    csv.field_size_limit(FIELD_CHARACTERS)
    rows = csv.reader((f"{line}\n" for _, line in lines), delimiter=delimiter, strict=True)
    while True:
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            yield (
                rows.line_num,
                f"is not a row of a table with quotes ({error}); config.data.options.quoting='off' reads it",
            )
            continue
        if row:
            yield rows.line_num, row


def _names(row: list[str], header: bool, path: str) -> list[str]:
    """Return the names of the columns; a column without a name is named by its number.

    Raises ``UserError`` if a name occurs twice or is not valid text.
    """
    if header and not is_unicode(row):
        raise UserError(f"the first line of {path} is not UTF-8; convert it or set config.data.options.encoding")
    names = [(name if header else "") or str(i) for i, name in enumerate(row)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UserError(
            f"the first line of {path} names {', '.join(map(repr, twice))} more than once; if it is not a header set"
            " config.data.options.header=False, else give every column a name of its own"
        )
    return names
