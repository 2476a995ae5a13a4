"""Counts the characters that lose a part if accents are stripped, as BERT does in lower case.

Latin letters lose an accent. Letters of other scripts lose a vowel sign (Devanagari), a tone (Thai) or a voicing mark
(kana). Korean syllables lose nothing, but BERT leaves them cut into their letters.
"""

from __future__ import annotations

import functools
import unicodedata
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

KEEP = "--config.vocab.strip_accents=False keeps them"
_FEW_ACCENTS, _FEW_SIGNS = 0.05, 0.01  # shares of the characters; French has 0.03 accents, Czech 0.12, Hindi 0.3 signs
_WITH_ACCENTS = ("LATIN", "GREEK", "CYRILLIC", "COMBINING")  # first words of the names of characters


class Losses(NamedTuple):
    """The number of characters of a text, and of characters that lose something."""

    characters: int
    accents: int  # letters of Latin, Greek or Cyrillic script that lose an accent
    signs: int  # letters of other scripts that lose a sign, and signs that stand alone
    syllables: int  # of Korean


def losses(text: str) -> Losses:
    """Return the counts of ``text``."""
    if text.isascii():
        return Losses(len(text), 0, 0, 0)
    found = Counter[str]()
    for character, count in Counter(unicodedata.normalize("NFC", text)).items():
        found[_kind(character)] += count
    return Losses(found.total(), found["accents"], found["signs"], found["syllables"])


def added(one: Losses, other: Losses) -> Losses:
    """Return the counts of two texts together."""
    return Losses(*(a + b for a, b in zip(one, other, strict=True)))


def line(found: Losses, strips: bool, cuts: bool) -> str:
    """Return a line that says what a tokenizer takes from the letters of a text; "" if the tokenizer takes little.

    Args:
      strips: whether the tokenizer strips accents.
      cuts: whether the tokenizer cuts Korean syllables into their letters.
    """
    accents, signs, syllables = found.accents * strips, found.signs * strips, found.syllables * cuts
    if signs + syllables <= _FEW_SIGNS * found.characters and accents <= _FEW_ACCENTS * found.characters:
        return ""
    kinds = {
        "accents are lost": accents,
        "signs of vowels, tones and voice are lost": signs,
        "Korean syllables are cut into letters": syllables,
    }
    share = (accents + signs + syllables) / found.characters
    what = ", ".join(kind for kind, count in kinds.items() if count > _FEW_SIGNS * found.characters)
    return f"stripping accents, as BERT does in lower case, changes {share:.1%} of the text's characters: {what}"


def strips_accents(normalize: Callable[[str], str]) -> bool:
    """Return whether a function that normalises text strips accents."""
    return not {"é", "\u0301"} & {*normalize("é")}


def cuts_syllables(normalize: Callable[[str], str]) -> bool:
    """Return whether a function that normalises text cuts Korean syllables into their letters."""
    return "각" not in normalize("각")


@functools.lru_cache(1 << 16)
def _kind(character: str) -> str:
    """Return which field of ``Losses`` a character counts in; "" if the character loses nothing."""
    parts = unicodedata.normalize("NFD", character)
    if any(unicodedata.category(part) == "Mn" for part in parts):
        return "accents" if unicodedata.name(parts[0], "").startswith(_WITH_ACCENTS) else "signs"
    return "syllables" if len(parts) > 1 and unicodedata.name(character, "").startswith("HANGUL") else ""
