"""Defines ``Encoded``, a model input made of one or two texts, which every tokenizer's ``encode`` returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from bert_jax.errors import UserError


class Cut(NamedTuple):
    """The pieces of one text, as a library gives them. Every field has one entry for each piece."""

    ids: Sequence[int]
    pieces: Sequence[str]
    offsets: Sequence[tuple[int, int]]


class Part(NamedTuple):
    """The pieces of one text, without special tokens around them. Every field has one entry for each piece."""

    ids: Sequence[int]
    offsets: Sequence[tuple[int, int]]
    word_starts: Sequence[bool]


@dataclasses.dataclass(frozen=True)
class Encoded:
    """One model input ``[CLS] a [SEP] b [SEP]``; every field has one entry for each position."""

    pieces: tuple[str, ...]
    input_ids: tuple[int, ...]
    token_type_ids: tuple[int, ...]
    attention_mask: tuple[int, ...]
    offsets: tuple[
        tuple[int, int], ...
    ]  # character span [start, stop) of each position in its own text; (0, 0) for special tokens
    word_starts: tuple[bool, ...]  # False for continuations, special tokens and padding


def lay_out(
    parts: Sequence[Part],
    vocab: Sequence[str],
    cls_id: int,
    sep_id: int,
    pad_id: int,
    max_length: int | None,
    pair_separators: int = 1,
    pair_type: int = 1,
) -> Encoded:
    """Return ``[CLS] a [SEP]`` or ``[CLS] a [SEP] b [SEP]``, cut and padded to ``max_length`` if that is given.

    While the input is too long, the longer of the two texts (the second on a tie) loses its last piece.

    Args:
      parts: the pieces of one or two texts.
      pair_separators: the number of ``[SEP]`` between the texts of a pair (2 in RoBERTa).
      pair_type: the token type of the second text (0 in RoBERTa).
    """
    kept = [len(part.ids) for part in parts]
    if max_length is not None:
        special = 2 if len(parts) == 1 else 2 + pair_separators
        capacity = max_length - special
        if capacity < 1:
            raise UserError(f"max_length is {max_length}; at least {special + 1} positions are needed")
        while sum(kept) > capacity:
            kept[-1 if kept[-1] >= kept[0] else 0] -= 1
    ids, types, offsets, starts = [cls_id], [0], [(0, 0)], [False]
    for segment, (part, n) in enumerate(zip(parts, kept, strict=True)):
        closing = pair_separators if segment < len(parts) - 1 else 1
        ids += [*part.ids[:n], *[sep_id] * closing]
        types += [segment * pair_type] * (n + closing)
        offsets += [*part.offsets[:n], *[(0, 0)] * closing]
        starts += [*part.word_starts[:n], *[False] * closing]
    padding = max(0, (max_length or 0) - len(ids))
    mask = [1] * len(ids) + [0] * padding
    ids += [pad_id] * padding
    return Encoded(
        pieces=tuple(vocab[i] for i in ids),
        input_ids=tuple(ids),
        token_type_ids=tuple(types + [0] * padding),
        attention_mask=tuple(mask),
        offsets=tuple(offsets + [(0, 0)] * padding),
        word_starts=tuple(starts + [False] * padding),
    )
