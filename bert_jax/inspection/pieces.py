"""Classifies the pieces of a vocabulary into boolean arrays [V], so that text can be judged by counting ids."""

from __future__ import annotations

import dataclasses
import functools
import re
import unicodedata
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from bert_jax.text.tokenizer import Tokenizer

_Flags = npt.NDArray[np.bool_]  # [V]

_FINAL = set(".!?…:;。！？；：．।؟።\"'”’»」』)]）】》")  # the ends of sentences, quotations and brackets
_SENTENCE_ENDS = set(".!?…。！？؟।")
_NO_TEXT = re.compile(r"\[unused\d+\]|<.*>")  # pieces that stand for no text
_EAST_ASIAN = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO")  # beginnings of the names of characters


@dataclasses.dataclass(frozen=True)
class Pieces:
    """The texts of a vocabulary's V pieces, and flags [V] that say which pieces have a property."""

    texts: tuple[str, ...]  # without the marks of continuation or word start; "" for special tokens
    continuation: _Flags

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Pieces:
        texts = tuple("" if on is None or _NO_TEXT.fullmatch(text) else text for text, on in tokenizer.surfaces)
        return cls(texts, np.asarray(tokenizer.is_continuation, bool))

    def where(self, test: Callable[[str], bool]) -> _Flags:
        return np.array([bool(text) and test(text) for text in self.texts])

    @functools.cached_property
    def final(self) -> _Flags:
        """Return which pieces end with a mark that ends a sentence."""
        return self.where(lambda text: text[-1] in _FINAL)

    @functools.cached_property
    def sentence_end(self) -> _Flags:
        """Return which pieces end with a mark that ends sentences and seldom titles."""
        return self.where(lambda text: text[-1] in _SENTENCE_ENDS)

    @functools.cached_property
    def alphabetic(self) -> _Flags:
        """Return which pieces consist of letters, other than ideographs and syllables of East Asian scripts."""
        return self.where(lambda text: text.isalpha() and not unicodedata.name(text[0], "").startswith(_EAST_ASIAN))

    @functools.cached_property
    def wordlike(self) -> _Flags:
        """Return which pieces have a letter or a digit, that is, all but punctuation and signs."""
        return self.where(lambda text: any(map(str.isalnum, text)))

    @functools.cached_property
    def single_continuation(self) -> _Flags:
        return self.alphabetic & self.continuation & self.where(lambda text: len(text) == 1)

    @functools.cached_property
    def capital(self) -> _Flags:
        return self.where(lambda text: text != text.lower())

    @functools.cached_property
    def small(self) -> _Flags:
        return self.where(lambda text: text != text.upper() and text == text.lower())
