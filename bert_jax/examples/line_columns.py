"""The reader ``line_columns``: reads records whose columns are lines of one file, or of several files side by side."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from bert_jax.errors import UserError
from bert_jax.examples.reading import BadRecord, DataRecord, need, text_lines


@dataclasses.dataclass(frozen=True)
class Reader:
    """Reads every so many lines as a record.

    With ``files``, the path of a split has a ``*``, and a record has a line of each file, in a column with the file's
    name in ``files``. Else the columns are numbered from 0. Lines that are blank in all files are skipped.
    """

    named_splits = True

    files: tuple[str, ...] = ()  # what takes the place of * in the path of a split, one after another
    num_lines: int = 1  # lines of a record, where there is one file

    def __post_init__(self) -> None:
        if self.num_lines < 1 or (self.files and self.num_lines > 1):
            raise UserError(
                f"config.data.options.num_lines is {self.num_lines}; at least 1 is needed, and 1 with several files"
            )

    def read(self, path: str) -> Iterator[DataRecord | BadRecord]:
        """Yield the records of ``path``. Raises ``UserError`` if its files have different numbers of lines."""
        if self.files:
            yield from self._side_by_side(path)
            return
        lines, size = [line for _, line in text_lines(need(path))], self.num_lines
        while lines and not lines[-1].strip():
            lines.pop()
        for start in range(0, len(lines), size):
            record, where = lines[start : start + size], f"{path}:{start + 1}"
            if len(record) < size:
                yield BadRecord(where, f"has {len(record)} of the {size} lines of a record")
            elif any(line.strip() for line in record):
                yield DataRecord({str(i): line for i, line in enumerate(record)}, where)

    def _side_by_side(self, path: str) -> Iterator[DataRecord]:
        if "*" not in path:
            raise UserError(f"{path} has no *, in whose place each of {', '.join(self.files)} is put; write it")
        lines = {name: [line for _, line in text_lines(need(path.replace("*", name)))] for name in self.files}
        counts = {name: len(found) for name, found in lines.items()}
        if len(set(counts.values())) > 1:
            counted = ", ".join(f"{count} in {path.replace('*', name)}" for name, count in counts.items())
            raise UserError(f"the files of a split have different numbers of lines: {counted}; mend them")
        for number, row in enumerate(zip(*lines.values(), strict=True), 1):
            if any(line.strip() for line in row):
                yield DataRecord(zip(self.files, row, strict=True), f"{path}:{number}")
