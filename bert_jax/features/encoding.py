"""Encodes a text as token ids, each with its position in the text."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from bert_jax.features.inputs import Item
from bert_jax.text.encoded import Encoded
from bert_jax.text.tokenizer import Tokenizer

CACHED_WORDS = 1 << 16


@dataclasses.dataclass(frozen=True)
class TextTokens:
    """The T tokens of one text, including ``[CLS]`` and ``[SEP]``."""

    input_ids: np.ndarray  # [T] int32
    token_type_ids: np.ndarray  # [T] int32
    offsets: np.ndarray  # [T, 2] int32: characters [start, stop) of the text (or pair); (0, 0) for special tokens
    word_ids: np.ndarray  # [T] int32: the number of the token's word, from 0; -1 for special tokens
    num_cut: int = 0  # the number of tokens left out because the text was too long


class ItemEncoder:
    """Encodes an item as ``[CLS] text [SEP]`` or ``[CLS] text [SEP] pair [SEP]``.

    If the item has words, each word is encoded separately, as ``tasks.tagging`` does.
    """

    def __init__(self, tokenizer: Tokenizer, max_length: int):
        self._tokenizer, self._max_length = tokenizer, max_length
        self._word = functools.lru_cache(CACHED_WORDS)(self._encode_word)

    def __call__(self, item: Item) -> TextTokens:
        if item.words is not None and item.pair is None:
            return self._of_words(item.words)
        encoded = self._tokenizer.encode(item.text, item.pair)
        num_cut = max(0, len(encoded.input_ids) - self._max_length)
        if num_cut:
            encoded = self._tokenizer.encode(item.text, item.pair, self._max_length)
        return _tokens(encoded, num_cut)

    def _of_words(self, words: Sequence[str]) -> TextTokens:
        """Encode each word separately. Offsets are character positions in the words joined by spaces."""
        ids, offsets, word_ids = [self._tokenizer.cls_id], [(0, 0)], [-1]
        start = 0
        for number, word in enumerate(words):
            own_ids, own_offsets = self._word(word)
            ids += own_ids
            offsets += [(start + a, start + b) for a, b in own_offsets]
            word_ids += [number] * len(own_ids)
            start += len(word) + 1
        kept = min(len(ids), self._max_length - 1)
        num_cut = len(ids) - kept
        ids, offsets = [*ids[:kept], self._tokenizer.sep_id], [*offsets[:kept], (0, 0)]
        word_ids = [*word_ids[:kept], -1]
        return TextTokens(_int32(ids), np.zeros(len(ids), np.int32), _int32(offsets), _int32(word_ids), num_cut)

    def _encode_word(self, word: str) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
        joiner = self._tokenizer.joiner  # the space before a word in running text
        encoded = self._tokenizer.encode(joiner + word)
        offsets = ((max(0, a - len(joiner)), max(0, b - len(joiner))) for a, b in encoded.offsets[1:-1])
        return encoded.input_ids[1:-1], tuple(offsets)


def _tokens(encoded: Encoded, num_cut: int) -> TextTokens:
    starts = np.asarray(encoded.word_starts)
    offsets = _int32(encoded.offsets)
    inside = offsets[:, 1] > offsets[:, 0]
    # The first token always begins a word, even if the tokenizer says otherwise (after a mark that it drops).
    word_ids = np.where(inside, np.maximum(np.cumsum(starts) - 1, 0), -1).astype(np.int32)
    return TextTokens(_int32(encoded.input_ids), _int32(encoded.token_type_ids), offsets, word_ids, num_cut)


def _int32(values: Sequence[object]) -> np.ndarray:
    return np.asarray(values, np.int32)
