"""The annotator ``segmenter``: marks the words of Chinese text, found with ``jieba`` (extra ``segment``).

Each word is a unit. Any other stretch that jieba does not cut (a Latin word, a number, a space, a punctuation mark) is
a unit too.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import itertools
import logging
import warnings
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from bert_jax.corpora.columns import unit_values
from bert_jax.errors import optional_library

VERSION = 1  # raise this number whenever the same text gets other values


@dataclasses.dataclass(frozen=True)
class Annotator:
    """Marks the words that jieba finds in its accurate mode as units."""

    # whether a model of modern Chinese also guesses words that the dictionary lacks; False is a third faster, and right
    # for classical Chinese, in which it invents words
    hmm: bool = True
    dtype: ClassVar[str] = "uint8"

    def identity(self) -> dict[str, Any]:
        _library()
        return {"version": VERSION, "jieba": importlib.metadata.version("jieba"), "hmm": self.hmm}

    def annotate(self, sentences: Sequence[str], spans: Sequence[np.ndarray]) -> list[np.ndarray]:
        values = []
        for sentence, places in zip(sentences, spans, strict=True):
            ends = [0, *itertools.accumulate(map(len, _segmenter().cut(sentence, HMM=self.hmm)))]
            assert ends[-1] == len(sentence), f"jieba changed {sentence!r}"
            values.append(unit_values(itertools.pairwise(ends), places))
        return values


def _library() -> Any:
    with warnings.catch_warnings():  # newer versions of Python warn of invalid escapes in jieba
        warnings.simplefilter("ignore")
        return optional_library("jieba", "the annotator 'segmenter'")


@functools.cache
def _segmenter() -> Any:
    """Return jieba's segmenter, with the dictionary read from jieba's own package.

    By default jieba would load a cached dictionary from the system's temporary folder, where any user may have put it.
    """
    library = _library()
    library.setLogLevel(logging.WARNING)
    segmenter = library.Tokenizer()
    segmenter.FREQ, segmenter.total = segmenter.gen_pfdict(segmenter.get_dict_file())
    segmenter.initialized = True
    return segmenter
