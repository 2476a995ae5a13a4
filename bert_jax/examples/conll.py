"""The reader ``conll``: reads files with a word and its tag on each line and blank lines between sentences.

Tags of other schemes become IOB2, in which every entity begins with ``B-``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Literal

from bert_jax.examples.reading import Bad, Record, text_lines

DOCSTART = "-DOCSTART-"
FIRST = ("B", "S", "U")  # prefixes that begin an entity; U is BILOU's name for S
INSIDE = ("I", "E", "M", "L")  # prefixes that continue an entity; M and E are from BMES, L is from BILOU


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
    scheme: Literal["auto", "as_found"] = "auto"  # auto: tags of any scheme become IOB2; as_found: they stay
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
            tags = [fields[self.tag_column] for _, fields in rows]
            columns["tags"] = _to_iob2(tags) if self.scheme == "auto" else tags
        return Record(columns, where)


def _width(*columns: int) -> int:
    """Return how many columns a line must have: at least two, so that word and tag are not the same column."""
    return max(2, *(column + 1 if column >= 0 else -column for column in columns))


def _to_iob2(tags: Sequence[str]) -> list[str]:
    """Return the tags of one sentence as IOB2.

    An ``I-X`` that does not follow a tag of the entity kind ``X`` becomes ``B-X``. In IOB1 this is the rule; in IOB2
    and BIOES such a tag is an error, which conlleval and seqeval read in the same way. So no scheme needs to be known.
    Tags without a prefix (parts of speech) stay as they are.
    """
    result, previous = [], ""
    for tag in tags:
        prefix, dash, kind = tag.partition("-")
        if not dash or prefix not in FIRST + INSIDE:
            result.append(tag)
            previous = ""
            continue
        result.append(f"{'I' if prefix in INSIDE and kind == previous else 'B'}-{kind}")
        previous = "" if prefix in ("E", "S", "L", "U") else kind
    return result
