"""Lone surrogates: half characters, which JSON can hold and UTF-8 cannot. No library of tokenizers takes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
_SURROGATE = re.compile("[\ud800-\udfff]")


def well_formed(text: str) -> str:
    """``text`` with U+FFFD, the mark of what could not be read, for each lone surrogate; of the same length."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def retried(encode: Callable[[Sequence[str]], T], texts: Sequence[str]) -> T:
    """``encode(texts)``, and once more with well-formed texts where it does not take them: looking at every text first
    would cost the many for the few."""
    try:
        return encode(texts)
    except TypeError:
        clean = [well_formed(text) for text in texts]
        if clean == list(texts):
            raise
        return encode(clean)
