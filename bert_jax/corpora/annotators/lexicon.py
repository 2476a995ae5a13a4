"""The annotator ``lexicon``: marks the phrases that a text file lists, such as names of persons, places and things."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from bert_jax.corpora.columns import unit_values
from bert_jax.errors import UserError
from bert_jax.storage import files, reading
from bert_jax.text.sentences import one_space

VERSION = 1  # raise this number whenever the same text gets other values
# Matches a letter or digit, except in scripts that write words without spaces or attach endings to them (Thai, Lao,
# Burmese, Khmer, kana, ideographs, Hangul). A phrase in those scripts may begin and end anywhere; any other phrase
# must begin and end at word boundaries.
SPACED = re.compile(
    r"[^\W_\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"
    r"\U00020000-\U0003ffff]"
)


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
        phrases = "\n".join(sorted(_phrases(self.path)))
        digest = hashlib.sha256(phrases.encode("utf-8")).hexdigest()
        return {"version": VERSION, "sha256": digest, "ignore_case": self.ignore_case}

    def annotate(self, sentences: Sequence[str], spans: Sequence[np.ndarray]) -> list[np.ndarray]:
        table = _table(self.path, self.ignore_case)
        texts = map(_lowered, sentences) if self.ignore_case else sentences
        return [unit_values(_matches(text, table), places) for text, places in zip(texts, spans, strict=True)]


@functools.lru_cache(maxsize=8)
def _phrases(path: str) -> frozenset[str]:
    """Return the phrases of a file. Raises ``UserError`` if there are none."""
    source = files.as_path(path)
    if not source.is_file():
        raise UserError(f"no lexicon {path}; name a text file of phrases, one per line")
    text = reading.utf8_text(source, path, "lexicon")
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    phrases = frozenset(filter(None, (one_space(line.partition("\t")[0]) for line in lines)))
    if not phrases:
        raise UserError(f"{path} has no phrases; a lexicon has one per line")
    return phrases


@functools.lru_cache(maxsize=8)
def _table(path: str, ignore_case: bool) -> Mapping[str, dict[int, set[str]]]:
    """Return the phrases as nested dicts: first two characters (or only one) -> length, longest first -> phrases."""
    phrases = set(map(_lowered, _phrases(path))) if ignore_case else _phrases(path)
    table: dict[str, dict[int, set[str]]] = {}
    for phrase in sorted(phrases, key=len, reverse=True):
        table.setdefault(phrase[:2], {}).setdefault(len(phrase), set()).add(phrase)
    return table


def _matches(text: str, table: Mapping[str, dict[int, set[str]]]) -> Iterator[tuple[int, int]]:
    """Yield (start, stop), the character span of each phrase found in ``text``."""
    start = 0
    while start < len(text):
        stop = start + _longest(text, start, table)
        if stop > start:
            yield start, stop
        start = max(stop, start + 1)


def _longest(text: str, start: int, table: Mapping[str, dict[int, set[str]]]) -> int:
    """Return the length of the longest phrase that begins at ``start``; 0 if there is none."""
    for beginning in (text[start : start + 2], text[start]):
        for length, phrases in table.get(beginning, {}).items():
            if text[start : start + length] in phrases and not (
                _in_word(text, start) or _in_word(text, start + length)
            ):
                return length
    return 0


def _in_word(text: str, place: int) -> bool:
    """Return whether ``place`` is inside a word, in a script that puts spaces between words."""
    return 0 < place < len(text) and all(map(SPACED.match, text[place - 1 : place + 1]))


def _lowered(text: str) -> str:
    """Return ``text`` in lower case, with the same length: a character whose lower case is longer stays unchanged."""
    lowered = text.lower()
    return lowered if len(lowered) == len(text) else "".join(c.lower() if len(c.lower()) == 1 else c for c in text)
