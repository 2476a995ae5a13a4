"""The reader ``table``: JSON Lines if a file's name ends in .json or .jsonl, otherwise separated values (CSV, TSV)."""

from __future__ import annotations

from collections.abc import Iterator

from bert_jax.examples import delimited, jsonl
from bert_jax.examples.reading import Bad, Record, plain_name

Options = delimited.Options  # for JSON Lines they have no meaning


class Reader:
    """Reads each row or object as a record, as the reader does that the end of the file's name asks for."""

    named_splits = False

    def __init__(self, options: Options | None = None) -> None:
        self._delimited, self._jsonl = delimited.Reader(options or Options()), jsonl.Reader()

    def read(self, path: str) -> Iterator[Record | Bad]:
        """Yield the records of ``path``."""
        is_json = plain_name(path).lower().endswith((".json", ".jsonl"))
        yield from (self._jsonl if is_json else self._delimited).read(path)
