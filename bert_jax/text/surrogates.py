"""Replaces lone surrogates: halves of characters, which JSON can hold, but UTF-8 and the tokenizer libraries cannot."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
SURROGATE = re.compile("[\ud800-\udfff]")


def well_formed(text: str) -> str:
    """Return ``text`` with each lone surrogate replaced by U+FFFD, the mark of unreadable text. The length stays."""
    return text if text.isascii() else SURROGATE.sub("\ufffd", text)


def retry_well_formed(encode: Callable[[Sequence[str]], T], texts: Sequence[str]) -> T:
    """Return ``encode(texts)``; if it raises ``TypeError``, try once more with well-formed texts.

    Checking every text first would slow down all texts for the few that need it.
    """
    try:
        return encode(texts)
    except TypeError:
        clean = [well_formed(text) for text in texts]
        if clean == list(texts):
            raise
        return encode(clean)
