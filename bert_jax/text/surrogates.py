"""Replaces lone surrogates: halves of characters, which JSON can hold, but UTF-8 and the tokenizer libraries cannot."""

from __future__ import annotations

import re

SURROGATE = re.compile("[\ud800-\udfff]")


def well_formed(text: str) -> str:
    """Return ``text`` with each lone surrogate replaced by U+FFFD, the mark of unreadable text. The length stays."""
    return text if text.isascii() else SURROGATE.sub("\ufffd", text)
