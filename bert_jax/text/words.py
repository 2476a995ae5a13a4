"""Splits raw text into words, for models that tag words; masking by words asks ``marks`` which piece begins one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from bert_jax.records import MASK

# Scripts that put no spaces between words: each of their characters is a word.
_UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
_WIDE = rf"[{_UNSPACED}\u3000-\u303f\uff00-\uff65]"  # with the punctuation of these scripts
# Also Thai, Lao, Tibetan, Burmese and Khmer, whose words have several characters.
NO_SPACES = re.compile(rf"{_WIDE}|[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff]")
_BESIDE = rf"[“”‘’…—]|{re.escape(MASK)}"  # signs that belong to these scripts if they stand beside them
SPACES = re.compile(rf"(?<={_WIDE}) (?={_WIDE}|{_BESIDE})|(?:(?<=[“”‘’…—])|(?<={re.escape(MASK)})) (?={_WIDE})")
_LETTERS = rf"(?:(?![{_UNSPACED}])\w)+"
PARTS = re.compile(
    rf"[{_UNSPACED}]"
    r"|\.{2,}|-{2,}"  # an ellipsis, a dash
    r"|(?:[^\W\d_]\.){2,99}(?!\w)"  # U.S.
    r"|\d[\d.,:/]*\d"  # 1,250.5
    r"|['’]s\b"
    rf"|{_LETTERS}(?:(?:[-&.@/]|['’](?!s\b)){_LETTERS})*"  # twenty-one, O'Neill, AT&T, example.com
    r"|\S"
)


class Word(NamedTuple):
    """A word of a text, and where it begins."""

    text: str
    start: int  # in characters

    @property
    def end(self) -> int:
        return self.start + len(self.text)


def split_words(text: str) -> list[Word]:
    """Return the words of ``text`` in order, much as in CoNLL's data: each punctuation mark is a word.

    Hyphens, apostrophes and dots inside a word stay in it, except the English ``'s``. A Chinese or Japanese character
    is a word.
    """
    return [Word(match.group(), match.start()) for match in PARTS.finditer(text)]


def is_spaced(texts: Iterable[str]) -> bool:
    """Return whether most characters of ``texts`` are of scripts that put spaces between words."""
    without = total = 0
    for text in texts:
        without += 0 if text.isascii() else len(NO_SPACES.findall(text))
        total += len("".join(text.split()))
    return 2 * without <= total


def joined_with(joiner: str, before: str, text: str) -> str:
    """Return ``text`` with ``joiner`` before it, unless the two texts meet in a script without spaces."""
    return text if NO_SPACES.match(text) or NO_SPACES.match(before[-1:]) else joiner + text


def unspaced(text: str) -> str:
    """Return ``text`` without the spaces between Chinese or Japanese characters, and between these and ``[MASK]``."""
    return SPACES.sub("", text)
