"""The annotator ``lexicon``: marks the phrases that a text file lists, such as names of persons, places and things."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from bert_jax.corpora import phrases
from bert_jax.corpora.columns import unit_values
from bert_jax.errors import UserError

VERSION = 1  # raise this number whenever the same text gets other values


@dataclasses.dataclass(frozen=True)
class Annotator:
    """Marks each phrase of a lexicon as a unit.

    Text is scanned from left to right, and at each place the longest phrase is taken. Each line of the file is a
    phrase; text after a tab (such as the counts in THUOCL's files) is ignored. Pieces that are in no phrase get the
    value ``OUTSIDE``.
    """

    path: str = ""  # a file of UTF-8 text, local or on an object store
    ignore_case: bool = False  # whether A and a are the same
    dtype: ClassVar[str] = "uint8"

    def __post_init__(self) -> None:
        if not self.path:
            raise UserError("an annotator 'lexicon' of config.corpus.columns has no path; name a file of phrases")

    def identity(self) -> dict[str, Any]:
        """Return all that the values depend on: version, phrases and options, but not the path of the file."""
        digest = hashlib.sha256("\n".join(sorted(_phrases(self.path))).encode("utf-8")).hexdigest()
        return {"version": VERSION, "sha256": digest, "ignore_case": self.ignore_case}

    def annotate(self, sentences: Sequence[str], spans: Sequence[np.ndarray]) -> list[np.ndarray]:
        table = _table(self.path, self.ignore_case)
        texts = map(phrases.lowered, sentences) if self.ignore_case else sentences
        return [unit_values(phrases.matches(text, table), places) for text, places in zip(texts, spans, strict=True)]


@functools.lru_cache(maxsize=8)
def _phrases(path: str) -> frozenset[str]:
    return frozenset(phrase for _, phrase, _ in phrases.read_lines(path))


@functools.lru_cache(maxsize=8)
def _table(path: str, ignore_case: bool) -> phrases.Table:
    return phrases.table_of(set(map(phrases.lowered, _phrases(path))) if ignore_case else _phrases(path))
