"""Finds the phrases of a lexicon in text: at each place the longest, from left to right.

A lexicon is a file of UTF-8 text with a phrase in each line; after a tab may follow what belongs to the phrase.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

from bert_jax.errors import UserError
from bert_jax.storage import files, reading
from bert_jax.text.sentences import one_space

# Phrases as nested dicts: first two characters (or only one) -> length, longest first -> phrases.
Table: TypeAlias = Mapping[str, dict[int, set[str]]]

# Matches a letter or digit, except in scripts that write words without spaces or attach endings to them (Thai, Lao,
# Burmese, Khmer, kana, ideographs, Hangul). A phrase in those scripts may begin and end anywhere; any other phrase
# must begin and end at word boundaries.
SPACED = re.compile(
    r"[^\W_\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"
    r"\U00020000-\U0003ffff]"
)
# Matches where a phrase may begin: at the first letter of a word, or at any character outside of such words.
_BEGINS = re.compile(rf"(?<!{SPACED.pattern}){SPACED.pattern}|(?!{SPACED.pattern})\S")


def read_lines(path: str) -> Iterator[tuple[int, str, str]]:
    """Yield the number of each line of a lexicon that has a phrase, its phrase, and the text after the first tab.

    Raises ``UserError`` if there is no such file, or the file is not UTF-8 or has no phrases.
    """
    source, some = files.as_path(path), False
    if not source.is_file():
        raise UserError(f"no lexicon {path}; name a text file of phrases, one per line")
    text = reading.utf8_text(source, path, "lexicon")
    for number, line in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), start=1):
        phrase, _, rest = line.partition("\t")
        if phrase := one_space(phrase):
            some = True
            yield number, phrase, rest
    if not some:
        raise UserError(f"{path} has no phrases; a lexicon has one per line")


def table_of(phrases: Iterable[str]) -> Table:
    """Return the table of ``phrases`` that ``matches`` reads."""
    table: dict[str, dict[int, set[str]]] = {}
    for phrase in sorted(phrases, key=len, reverse=True):
        table.setdefault(phrase[:2], {}).setdefault(len(phrase), set()).add(phrase)
    return table


def matches(text: str, table: Table) -> Iterator[tuple[int, int]]:
    """Yield (start, stop), the character span of each phrase found in ``text``."""
    stop = 0
    for begin in _BEGINS.finditer(text):
        start = begin.start()
        if start >= stop and (length := _longest(text, start, table)):
            stop = start + length
            yield start, stop


def _longest(text: str, start: int, table: Table) -> int:
    """Return the length of the longest phrase that begins at ``start``; 0 if there is none."""
    for beginning in (text[start : start + 2], text[start]):
        for length, phrases in table.get(beginning, {}).items():
            if text[start : start + length] in phrases and not _in_word(text, start + length):
                return length
    return 0


def _in_word(text: str, place: int) -> bool:
    """Return whether ``place`` is inside a word, in a script that puts spaces between words."""
    return 0 < place < len(text) and all(map(SPACED.match, text[place - 1 : place + 1]))


def lowered(text: str) -> str:
    """Return ``text`` in lower case, with the same length: a character whose lower case is longer stays unchanged."""
    lower = text.lower()
    return lower if len(lower) == len(text) else "".join(c.lower() if len(c.lower()) == 1 else c for c in text)
