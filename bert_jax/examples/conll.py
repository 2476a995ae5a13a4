"""The reader ``conll``: reads files with a word and its tag on each line and blank lines between sentences."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from bert_jax.examples.reading import Bad, Record, text_lines
from bert_jax.examples.tags import Scheme, to_iob2

DOCSTART = "-DOCSTART-"


@dataclasses.dataclass(frozen=True)
class Reader:
    """Reads sentences as records ``{"words": [...], "tags": [...], "document": int}``, with tags in IOB2.

    A ``-DOCSTART-`` line begins a document and is not a sentence. A sentence is bad if one of its lines lacks a column
    that is read. If all lines of a sentence have only a word, it has no tags.
    """

    named_splits = False

    word_column: int = 0  # the column of the word, from 0
    tag_column: int = -1  # the last
    delimiter: str = ""  # if "", any run of spaces and tabs
    scheme: Scheme = "auto"  # of the tags: auto, or its name
    segmentation_digit: bool = False  # each character is followed by its number within a word, as in Weibo NER

    def read(self, path: str) -> Iterator[Record | Bad]:
        """Yield the sentences of ``path``."""
        rows: list[tuple[int, list[str]]] = []
        document = 0
        for number, line in text_lines(path):
            if line.startswith(DOCSTART):
                document += 1
            if line.strip(" \t") and not line.startswith(DOCSTART):
                rows.append((number, self._fields(line)))
            elif rows:
                yield self._sentence(path, rows, document)
                rows = []
        if rows:
            yield self._sentence(path, rows, document)

    def _fields(self, line: str) -> list[str]:
        if self.delimiter:
            return line.split(self.delimiter)
        fields = line.replace("\t", " ").split(" ")  # split only at these: an ideographic space is a word
        return [field for field in fields if field] if "" in fields else fields

    def _sentence(self, path: str, rows: list[tuple[int, list[str]]], document: int) -> Record | Bad:
        where = f"{path}:{rows[0][0]}"
        untagged = self.tag_column in (-1, 1) and all(len(fields) == 1 for _, fields in rows)
        needed = 1 if untagged else _width(self.word_column, self.tag_column)
        for number, fields in rows:
            if len(fields) < needed:
                return Bad(f"{path}:{number}", f"has {len(fields)} columns where at least {needed} are needed")
        words = [fields[self.word_column] for _, fields in rows]
        if self.segmentation_digit:
            words = [word[:-1] if word[-1:].isdigit() and len(word) > 1 else word for word in words]
        columns = {"words": words, "document": document}
        if not untagged:
            columns["tags"] = to_iob2([fields[self.tag_column] for _, fields in rows], self.scheme)
        return Record(columns, where)


def _width(*columns: int) -> int:
    """Return how many columns a line must have: at least two, so that word and tag are not the same column."""
    return max(2, *(column + 1 if column >= 0 else -column for column in columns))
