"""The reader ``table``: JSON Lines if a file's name ends in .json or .jsonl, otherwise separated values (CSV, TSV)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from bert_jax.examples import delimited, jsonl
from bert_jax.examples.reading import BadRecord, DataRecord, plain_name


@dataclasses.dataclass(frozen=True)
class Reader(delimited.Reader):
    """Reads each row or object as a record. The options are the options of separated values, and ``field`` for JSON."""

    field: Any = ""  # of JSON: the lists that lead to the records, as for jsonl

    def read(self, path: str) -> Iterator[DataRecord | BadRecord]:
        """Yield the records of ``path``."""
        is_json = plain_name(path).lower().endswith((".json", ".jsonl"))
        return jsonl.Reader(self.field).read(path) if is_json else super().read(path)
