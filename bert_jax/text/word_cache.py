"""A cache of the ids of words, which makes encoding a corpus several times faster."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

CACHED_WORDS = 1 << 19  # about 120 MB
TEXTS_AHEAD = 512  # the number of texts whose new words the library encodes at once


class WordCache:
    """Encodes texts whose ids are the concatenated ids of their words. Threads may share a cache."""

    def __init__(self, split: Callable[[str], list[str]], add: Callable[[set[str], dict[str, bytes]], None]) -> None:
        """
        Args:
          split: returns the words of a text.
          add: encodes each word of a set and puts it into a dictionary: word -> the bytes of its int32 ids.
        """
        self._split, self._add = split, add
        self._cache: dict[str, bytes] = {}
        self._old: dict[str, bytes] = {}

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the ids of each text, int32 (read-only)."""
        cache, split, result = self._cache, self._split, list[np.ndarray]()
        while len(result) < len(texts):
            try:
                for text in itertools.islice(texts, len(result), None):
                    result.append(np.frombuffer(b"".join(map(cache.__getitem__, split(text))), np.int32))
            except KeyError:  # rare once the cache has filled; checking all words first would be a quarter slower
                cache = self._with_words_of(texts[len(result) : len(result) + TEXTS_AHEAD])
        return result

    def _with_words_of(self, texts: Sequence[str]) -> dict[str, bytes]:
        """Return the cache after adding the words of ``texts``.

        A full cache becomes the old cache and replaces the previous old cache. Words that are used again are copied
        from the old cache.
        """
        if len(self._cache) > CACHED_WORDS // 2:
            self._old, self._cache = self._cache, {}
        cache, old = self._cache, self._old
        new = set(itertools.chain.from_iterable(map(self._split, texts))).difference(cache)
        known = {word: old[word] for word in new if word in old}
        cache.update(known)
        self._add(new.difference(known), cache)
        return cache
