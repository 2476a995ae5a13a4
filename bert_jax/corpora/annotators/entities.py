"""The annotator ``entities``: links the phrases that a text file lists to the entities of a table of vectors.

The id of an entity stands on the first piece of each mention (Zhang et al. 2019, "ERNIE", section 3.1), and all other
pieces have 0. An id is the row of the entity in the table (``models.entity_table``).
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from bert_jax.corpora import phrases
from bert_jax.corpora.columns import BEGINS, unit_values
from bert_jax.errors import UserError

VERSION = 1  # raise this number whenever the same text gets other values
_LARGEST, _DIGITS = 2**31 - 1, 10  # rows have the ids as int32


@dataclasses.dataclass(frozen=True)
class Annotator:
    """Writes the ids of the phrases of a lexicon, whose lines are PHRASE, a tab and ID.

    Text is scanned from left to right, and at each place the longest phrase is taken, as the annotator ``lexicon``
    does. Several phrases may have one id.
    """

    path: str = ""  # a file of UTF-8 text, local or on an object store: a phrase, a tab and an id in each line
    ignore_case: bool = False  # whether A and a are the same
    dtype: ClassVar[str] = "uint32"

    def __post_init__(self) -> None:
        if not self.path:
            raise UserError(
                "an annotator 'entities' of config.corpus.columns has no path; name a file whose lines are a phrase, a "
                "tab and an id"
            )

    def identity(self) -> dict[str, Any]:
        """Return all that the values depend on, but not the path of the file; and the largest id."""
        known = _ids(self.path, self.ignore_case)
        lines = "\n".join(sorted(f"{phrase}\t{number}" for phrase, number in known.items()))
        digest = hashlib.sha256(lines.encode("utf-8")).hexdigest()
        facts = {"version": VERSION, "sha256": digest, "ignore_case": self.ignore_case}
        return facts | {"largest_id": max(known.values())}

    def ids(self) -> np.ndarray:
        """Return the ids of the lexicon, int64 [n], one for each phrase."""
        return np.fromiter(_ids(self.path, self.ignore_case).values(), np.int64)

    def id_of(self, phrase: str) -> int:
        """Return the id of a whole phrase; 0 if the lexicon lacks it."""
        return _ids(self.path, self.ignore_case).get(phrases.lowered(phrase) if self.ignore_case else phrase, 0)

    def annotate(self, sentences: Sequence[str], spans: Sequence[np.ndarray]) -> list[np.ndarray]:
        known, table = _ids(self.path, self.ignore_case), _table(self.path, self.ignore_case)
        texts = map(phrases.lowered, sentences) if self.ignore_case else sentences
        return [_values(text, places, known, table) for text, places in zip(texts, spans, strict=True)]


def _values(text: str, spans: np.ndarray, known: dict[str, int], table: phrases.Table) -> np.ndarray:
    """Return uint32 [n]: the id of a mention on the first piece that begins in the mention, else 0."""
    values, mentions = np.zeros(len(spans), np.uint32), list(phrases.matches(text, table))
    begins = np.flatnonzero(unit_values(mentions, spans) == BEGINS)
    at = np.searchsorted([start for start, _ in mentions], spans[begins, 0], side="right") - 1
    values[begins] = [known[text[slice(*mentions[i])]] for i in at]
    return values


@functools.lru_cache(maxsize=8)
def _ids(path: str, ignore_case: bool) -> dict[str, int]:
    """Return phrase -> id. Raises ``UserError`` for a line without an id, a bad id, or two ids of a phrase."""
    known: dict[str, int] = {}
    for number, phrase, rest in phrases.read_lines(path):
        line, written = f"line {number:,} of the lexicon {path}, {phrase[:40]!r},", rest.strip()
        if not written:
            raise UserError(f"{line} has no id; each line is a phrase, a tab and an id, the row in the entity table")
        if not (written.isdecimal() and len(written) <= _DIGITS and 1 <= int(written) <= _LARGEST):
            raise UserError(f"{line} has the id {written[:40]!r}; a whole number from 1 to {_LARGEST:,} is needed")
        phrase = phrases.lowered(phrase) if ignore_case else phrase
        if known.setdefault(phrase, int(written)) != int(written):
            raise UserError(
                f"{line} has the id {written}, and an earlier line gives this phrase the id {known[phrase]}; keep one "
                f"of them{', or set ignore_case to False' if ignore_case else ''}"
            )
    return known


@functools.lru_cache(maxsize=8)
def _table(path: str, ignore_case: bool) -> phrases.Table:
    return phrases.table_of(_ids(path, ignore_case))
