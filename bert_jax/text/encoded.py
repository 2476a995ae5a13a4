"""The results of tokenizers: the pieces of a text, and a model input of one or two texts; how a pair is cut."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.text.roles import CLS_TYPE


class Cut(NamedTuple):
    """The pieces of one text, as a library gives them. Every field has one entry for each piece."""

    ids: Sequence[int]
    pieces: Sequence[str]
    offsets: Sequence[tuple[int, int]]


@dataclasses.dataclass(frozen=True)
class Encoded:
    """One model input ``[CLS] a [SEP] b [SEP]``; every field has one entry for each position."""

    pieces: tuple[str, ...]
    input_ids: tuple[int, ...]
    token_type_ids: tuple[int, ...]
    attention_mask: tuple[int, ...]
    # character span [start, stop) of each position in its own text; (0, 0) for special tokens
    offsets: tuple[tuple[int, int], ...]
    word_starts: tuple[bool, ...]  # False for continuations, special tokens and padding


def places_of_text(encoded: Encoded, around: tuple[Sequence[int], Sequence[int]]) -> slice:
    """Return the positions of a text among its special tokens; ``around``: ``Tokenizer.around``."""
    before, after = map(len, around)
    return slice(before, len(encoded.input_ids) - after)


def kept_lengths(first: int, second: int, capacity: int) -> tuple[int, int]:
    """Return how many pieces of two texts of ``first`` and ``second`` pieces are kept, at most ``capacity`` in all.

    One piece at a time is dropped from the longer text, or from the second if both are equally long.
    """
    kept = min(first, max(capacity - second, capacity - capacity // 2))
    return kept, min(second, capacity - kept)


def typed(token_type_ids: np.ndarray, cls_last: bool) -> np.ndarray:
    """Return the token types [n] of a sequence. If [CLS] is the last token, it has the type ``CLS_TYPE``."""
    return np.append(token_type_ids[:-1], np.int32(CLS_TYPE)) if cls_last else token_type_ids
