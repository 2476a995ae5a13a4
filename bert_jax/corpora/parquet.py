"""The source ``parquet``: parquet files as Hugging Face keeps them, with the text in a column."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import IO, Any

import pyarrow
import pyarrow.parquet

from bert_jax.corpora.bad_text import BadText, BadTextError
from bert_jax.corpora.file_source import FileSource
from bert_jax.corpora.source import Piece, Skipped, below, display_path
from bert_jax.corpora.values import LineBreaks, RecordSource, column_of
from bert_jax.errors import first_line
from bert_jax.records import Document
from bert_jax.storage import files, reading

ROWS = 256  # the number of rows read at a time
_DAMAGE = (pyarrow.ArrowException, OSError, UnicodeDecodeError)


@dataclasses.dataclass(frozen=True)
class Source(FileSource, RecordSource):
    """Reads parquet files. Each row is a document, named ``<path>#<number of the row in the file>``.

    The text is a string or a list of sentences, as in ``jsonl``. ``bad_text="skip"`` leaves out and counts rows whose
    text is not UTF-8, and, in a damaged file, everything after the damage.
    """

    FILES = "parquet files"

    paths: tuple[str, ...]  # globs; ** matches folders
    text_column: str = "text"  # a dot selects a field of a column of structs
    line_breaks: LineBreaks = "end_sentences"  # are_spaces for hard-wrapped text
    language: str = "en"  # the language whose rules split text into sentences
    bad_text: BadText = "error"  # skip: leave out and count what cannot be read

    def pieces(self) -> list[Piece]:
        """Return a piece for each row group of each file, with the files in the order of their names.

        Raises:
          UserError: there is no file, or a file is not parquet or lacks the column.
        """
        result = []
        for name in self.names():
            try:
                with _open(name) as table:
                    column_of(self.text_column, table.schema_arrow.names, display_path(name))
                    groups = [table.metadata.row_group(i) for i in range(table.num_row_groups)]
                    sizes = [_column_bytes(group, self.text_column) for group in groups]
            except BadTextError as error:
                error.skip_or_raise(self.bad_text)
                sizes = []
            result += [Piece(name, i, i + 1, size) for i, size in enumerate(sizes)] or [Piece(name, 0, 0)]
        return result

    def read(self, piece: Piece) -> Iterator[Document | Skipped]:
        """Yield the documents of the row groups of ``piece``."""
        name = below(piece.name)
        try:
            with _open(piece.name) as table:
                if piece.start == 0 and table.metadata.num_rows == 0:
                    yield Skipped(name, "no text")
                    return
                last = table.num_row_groups if piece.stop < 0 else piece.stop
                first = sum(table.metadata.row_group(i).num_rows for i in range(piece.start))
                path = display_path(piece.name)
                column = column_of(self.text_column, table.schema_arrow.names, path)
                for row, value in enumerate(_values(table, range(piece.start, last), column, piece.name), first):
                    yield self.cell(f"{name}#{row}", column, value, self.text_column, f"{path}, row {row}")
        except BadTextError as error:
            yield error.skip_or_raise(self.bad_text)


def _values(table: Any, groups: range, column: str, name: str) -> Iterator[Any]:
    """Yield the values of ``column`` in the row groups ``groups``. Raises ``BadTextError`` for a damaged file."""
    batches = table.iter_batches(batch_size=ROWS, row_groups=list(groups), columns=[column])
    while True:
        try:
            batch = next(batches, None)
            values = None if batch is None else _binary(batch.column(0)).to_pylist()
        except _DAMAGE as error:
            raise _damaged(name, f"in row groups {groups.start} to {groups.stop - 1}", error) from error
        if values is None:
            return
        yield from values


def _binary(column: Any) -> Any:
    """Return a column of strings as bytes, so that each value can be checked: it may hold bytes that are not UTF-8."""
    types = {pyarrow.string(): pyarrow.binary(), pyarrow.large_string(): pyarrow.large_binary()}
    return column.cast(types[column.type]) if column.type in types else column


def _column_bytes(group: Any, field: str) -> int:
    paths = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    own = [c for path, c in paths.items() if path == field or path.startswith(field + ".")]
    return sum(column.total_uncompressed_size for column in own)


@contextlib.contextmanager
def _open(name: str) -> Iterator[Any]:
    file: IO[bytes]
    with reading.open_plain(files.as_path(name)) as file:
        try:
            table = pyarrow.parquet.ParquetFile(file)
        except _DAMAGE as error:
            raise _damaged(name, "in its footer", error) from error
        yield table


def _damaged(name: str, place: str, error: Exception) -> BadTextError:
    message = f"{display_path(name)} is damaged or not a parquet file, {place} ({first_line(error)}); replace the file"
    return BadTextError(name, "damaged file", message)
