"""Splitting running text into sentences."""

from __future__ import annotations

import sentencex


def split_sentences(text: str, language: str = "en") -> list[str]:
    """Sentences of ``text`` in order, runs of white space made one space, empty ones dropped.

    A line break is white space like any other: hard-wrapped prose is joined before it is split. Callers that know
    paragraphs pass them one by one. ``language`` is an ISO 639-1 code; an unknown one gets the general rules.
    """
    joined = " ".join(text.split())
    return [s for s in map(str.strip, sentencex.segment(language, joined)) if s] if joined else []
