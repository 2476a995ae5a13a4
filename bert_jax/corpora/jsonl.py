"""The source ``jsonl``: JSON objects, one per line or in an array, with the text in one of their fields."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Iterator
from typing import Any

from bert_jax.corpora.bad_text import BadText, BadTextError, decode
from bert_jax.corpora.byte_ranges import elements, lines
from bert_jax.corpora.file_source import FileSource
from bert_jax.corpora.source import Piece, Skipped, below, display_path
from bert_jax.corpora.unpacking import Unpacked, open_unpacked
from bert_jax.corpora.values import LineBreaks, RecordSource, pick
from bert_jax.records import Document

ARRAY = re.compile(rb"(\xef\xbb\xbf)?\s*\[\s*\{")


@dataclasses.dataclass(frozen=True)
class Source(FileSource, RecordSource):
    """Reads files of JSON objects. Each is a document, named ``<path>@<byte offset of its line or of the object>``.

    A file that begins with ``[{`` is an array, which is read object by object; any other file has an object a line.
    The text is a list of sentences, or a string in which a line break ends a sentence unless ``line_breaks`` makes it a
    space. ``bad_text="skip"`` leaves out and counts lines that are not JSON or lack the field.
    """

    FILES = "JSON Lines files, also .gz, .xz, .bz2 or .zst"

    paths: tuple[str, ...]  # globs; ** matches folders
    text_field: str = "text"  # a dot selects a field of a nested object
    line_breaks: LineBreaks = "end_sentences"  # are_spaces for hard-wrapped text
    language: str = "en"  # the language whose rules split text into sentences
    bad_text: BadText = "error"  # skip: leave out and count what cannot be read

    def can_cut(self, name: str) -> bool:
        """Return whether ``name`` is an uncompressed file of lines."""
        if not super().can_cut(name):
            return False
        with contextlib.suppress(BadTextError), open_unpacked(name) as file:
            return ARRAY.match(file.head) is None
        return False

    def items(self, piece: Piece) -> Iterator[Document | Skipped]:
        """Yield the documents whose lines begin in ``piece``, or all of an array; a blank line is not a document."""
        yield from self.unpacked(piece, self._objects)

    def _objects(self, file: Unpacked, piece: Piece) -> Iterator[Document | Skipped]:
        array = ARRAY.match(file.head)
        for offset, line in elements(file) if array else lines(file, piece.start, piece.stop):
            if line and not line.isspace():
                yield self._document(line, piece.name, offset)

    def _document(self, line: bytes, path: str, offset: int) -> Document | Skipped:
        where = f"{display_path(path)} at byte offset {offset}"
        name = f"{below(path)}@{offset}"

        def text() -> Any:
            record = _object(decode(line, path, offset), where)
            return pick(record, self.text_field, where, "config.corpus.options.text_field")

        return self.document(name, text, where)


def _object(line: str, where: str) -> dict[str, Any]:
    """Return the JSON object of ``line``. Raises ``BadTextError`` if the line is anything else."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:  # not JSON, nested too deep, or a number with too many digits
        raise BadTextError(
            where,
            "not JSON",
            f"{where} has text that is not JSON ({str(error)[:120]}); objects are needed, one a line or in an array",
        ) from None
    if not isinstance(record, dict):
        raise BadTextError(
            where,
            "not a JSON object",
            f"{where} has a JSON {type(record).__name__}; objects are needed, one a line or in an array",
        )
    return record
