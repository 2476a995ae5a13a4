"""The reader ``conll``: reads files with a word and its tag on each line and blank lines between sentences.

Tags of other schemes become IOB2, in which every entity begins with ``B-``.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from bert_jax.corpora.other_formats import is_json
from bert_jax.errors import UserError
from bert_jax.examples.reading import BadRecord, DataRecord, text_lines, typed

_DOCSTART = "-DOCSTART-"
_FIRST = ("B", "S", "U")  # prefixes that begin an entity; U is BILOU's name for S
_INSIDE = ("I", "E", "M", "L")  # prefixes that continue an entity; M and E are from BMES, L is from BILOU
_ENTITY = tuple(f"{prefix}-" for prefix in _FIRST + _INSIDE)
NUMBER = re.compile(r"\d+([-.]\d+)?")  # of a word; CoNLL-U also numbers contracted words (3-4) and omitted words (5.1)
_COMMENTS = ("# ", "#begin document", "#end document")  # the last two are of CoNLL 2012
_CONLL_U, _CONLL_U_TAGS = 10, 3  # the columns of a line of CoNLL-U, and the column of the parts of speech


class _Form(NamedTuple):
    """How the lines of a file are written."""

    width: int  # the number of columns of most lines
    tags: frozenset[str]  # on lines that do not begin with "#"
    numbered: bool  # whether the first column numbers the words of each sentence


@dataclasses.dataclass(frozen=True)
class Reader:
    """Reads sentences as records ``{"words": [...], "tags": [...], "document": int}``, with tags in IOB2.

    A ``-DOCSTART-`` line begins a document and is not a sentence. A line before a sentence that begins with ``#`` is a
    comment if it has not as many columns as the file, or no tag of the file. A sentence is bad if one of its lines has
    not as many columns as the file. If all lines of a sentence have only a word, it has no tags. Where the first column
    numbers the words, as in CoNLL-U, contracted words (``3-4``) and omitted words (``5.1``) are left out.
    """

    named_splits = False

    word_column: int = 0  # the column of the word, from 0
    tag_column: int = -1  # the last
    delimiter: str = ""  # if "", a tab if all lines with several columns have one, else any run of spaces and tabs
    scheme: Literal["auto", "as_found"] = "auto"  # auto: tags of any scheme become IOB2; as_found: they stay
    segmentation_digit: bool = False  # each character is followed by its number within a word, as in Weibo NER

    def read(self, path: str) -> Iterator[DataRecord | BadRecord]:
        """Yield the sentences of ``path``. Raises ``UserError`` if the column of the words has their numbers."""
        found = list(text_lines(path))
        if is_json("".join(line for _, line in found[:1]).lstrip()):
            raise UserError(f"{path} is JSON, without a word on each line; --config.data.format=jsonl reads it")
        delimiter = typed(self.delimiter) or ("\t" if _has_tabs(line for _, line in found) else "")
        lines = [(number, line, _fields(line, delimiter)) for number, line in found]
        form = self._form(fields for _, line, fields in lines if fields and not line.startswith((_DOCSTART, "#")))
        if form.numbered and self.word_column == 0:
            tags = f" --config.data.options.tag_column={_CONLL_U_TAGS}" if form.width == _CONLL_U else ""
            raise UserError(
                f"{path} has numbers of words in its first column, and the words in another: "
                f"--config.data.options.word_column=1{tags or ', with tag_column for the tags (-1: the last column)'}"
            )
        rows: list[tuple[int, tuple[str, ...]]] = []
        document = 0
        for number, line, fields in lines:
            if fields and not line.startswith(_DOCSTART):
                is_word = not form.numbered or fields[0].isdecimal() or line.startswith("#")
                if is_word and (rows or not self._is_comment(line, fields, form)):
                    rows.append((number, fields))
                continue
            if rows:
                yield self._sentence(path, rows, document, form)
                rows = []
            document += line.startswith(_DOCSTART)
        if rows:
            yield self._sentence(path, rows, document, form)

    def _form(self, words: Iterable[tuple[str, ...]]) -> _Form:
        """Return how the lines with ``words`` are written, each given as its columns."""
        rows = list(words)
        widths = collections.Counter(map(len, rows)).most_common(1)
        width = widths[0][0] if widths else 1
        whole = [fields for fields in rows if len(fields) == width > 1]
        tags = frozenset(fields[self.tag_column] for fields in whole if -width <= self.tag_column < width)
        numbered = bool(whole) and all(NUMBER.fullmatch(fields[0]) for fields in whole)
        counts = [int(fields[0]) for fields in whole if fields[0].isdecimal()] if numbered else []
        runs = all(b in (1, a + 1) for a, b in zip([0, *counts], counts, strict=False))
        return _Form(width, tags, numbered and (2 in counts or width == _CONLL_U) and runs)

    def _is_comment(self, line: str, fields: Sequence[str], form: _Form) -> bool:
        """Return whether a line before a sentence is a comment, and not a sentence that begins with the word ``#``."""
        if not line.startswith("#"):
            return False
        if len(fields) != form.width:
            return fields[0] == "#" or line.startswith(_COMMENTS) or form.width == _CONLL_U
        tag = fields[self.tag_column] if form.tags else "#"
        return fields[0] == "#" and tag not in {*form.tags, "#"} and tag[:2] not in _ENTITY

    def _sentence(
        self, path: str, rows: list[tuple[int, tuple[str, ...]]], document: int, form: _Form
    ) -> DataRecord | BadRecord:
        where = f"{path}:{rows[0][0]}"
        untagged = self.tag_column in (-1, 1) and all(len(fields) == 1 for _, fields in rows)
        needed = 1 if untagged else _width(self.word_column, self.tag_column)
        for number, fields in rows:
            if len(fields) != form.width and not untagged:
                hint = r" (--config.data.options.delimiter='\t' reads words with spaces)" if form.width == 1 else ""
                return BadRecord(
                    f"{path}:{number}", f"has {len(fields)} columns where most lines have {form.width}{hint}"
                )
        for number, fields in rows:
            if len(fields) < needed:
                return BadRecord(f"{path}:{number}", f"has {len(fields)} columns where at least {needed} are needed")
        words = [fields[self.word_column] for _, fields in rows]
        if "" in words:
            return BadRecord(f"{path}:{rows[words.index('')][0]}", "has no word")
        if self.segmentation_digit:
            words = [word[:-1] if word[-1:].isdigit() and len(word) > 1 else word for word in words]
        columns = {"words": words, "document": document}
        if not untagged:
            tags = [fields[self.tag_column] for _, fields in rows]
            columns["tags"] = _to_iob2(tags) if self.scheme == "auto" else tags
        return DataRecord(columns, where)


def _has_tabs(lines: Iterable[str]) -> bool:
    """Return whether all lines of words that have several columns have a tab."""
    tabs = spaces = False
    for line in lines:
        if not line.startswith((_DOCSTART, "#")) and (" " in line or "\t" in line):
            tabs = tabs or "\t" in line.strip(" \t")
            spaces = spaces or ("\t" not in line and " " in line.strip(" "))
    return tabs and not spaces


def _fields(line: str, delimiter: str) -> tuple[str, ...]:
    """Return the columns of a line; () for a blank line. A tab at its end and spaces around columns do not count."""
    if delimiter:
        cut = line.rstrip("\t ")
        return tuple([field.strip(" ") for field in cut.split(delimiter)]) if cut else ()
    # Only tabs and spaces separate columns: an ideographic space is a word.
    return tuple([field for field in line.replace("\t", " ").split(" ") if field])


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
        if not dash or prefix not in _FIRST + _INSIDE:
            result.append(tag)
            previous = ""
            continue
        result.append(f"{'I' if prefix in _INSIDE and kind == previous else 'B'}-{kind}")
        previous = "" if prefix in ("E", "S", "L", "U") else kind
    return result
