"""Paragraphs whose pieces are shuffled, ``[CLS] pieces [SEP]``, and the number of the permutation.

ERNIE 2.0's sentence reordering (Sun et al. 2020, section 4.2.2). A paragraph is as many whole sentences of a document
as fit in a row. It is cut between sentences into 1 to ``max_pieces`` pieces, and the pieces are shuffled. The class is
the permutation: ``orders(max_pieces)[class]`` says which piece of the text stands at each place. With three pieces
there are 1! + 2! + 3! = 9 classes:

=====  ========================     =====  ========================
class  pieces of the text           class  pieces of the text
=====  ========================     =====  ========================
0      0 (not cut)                  5      1 0 2
1      0 1                          6      1 2 0
2      1 0                          7      2 0 1
3      0 1 2                        8      2 1 0
4      0 2 1
=====  ========================     =====  ========================

The paper does not say how often each number of pieces is drawn, or whether the model sees where a piece ends. Here the
classes that a paragraph has sentences for are equally likely, and token types are 0, 1, 0, 1, ... from piece to piece:
without a mark at the cuts, a text in order would be three classes alike. A paragraph of one sentence is left out, and
so is the sentence after each paragraph, which did not fit: at the begin of the next paragraph it would be longer than
other sentences, and its length would tell the first piece.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from bert_jax.configuration import check_fields
from bert_jax.errors import UserError
from bert_jax.rows import chunks, random
from bert_jax.rows.arrangements import sentence_pairs
from bert_jax.rows.interfaces import (
    Field,
    Ids,
    Ints,
    Limits,
    Records,
    Rows,
    Sentences,
    TokenFacts,
    check_documents,
)

_MOST_PIECES = 5  # 153 classes


@functools.cache
def orders(max_pieces: int) -> tuple[tuple[int, ...], ...]:
    """Return the permutation of each class: of one piece, of two pieces and so on, each in lexicographic order."""
    return tuple(order for n in range(1, max_pieces + 1) for order in itertools.permutations(range(n)))


@dataclasses.dataclass(frozen=True)
class Arrangement:
    """Makes shuffled paragraphs. Its fields are the options of ``config.objective.arrangement_options``."""

    max_pieces: int = 3  # a paragraph is cut into 1 to this many pieces: 9 classes of 3, 33 of 4

    version = 1
    special_tokens = 2
    shortest = 4
    label: ClassVar[str] = "sentence_reordering"
    fields: ClassVar[dict[str, Field]] = sentence_pairs.fields_of(label)

    def __post_init__(self) -> None:
        where = "config.objective.arrangement_options"
        allowed = f"2 to {_MOST_PIECES} is allowed"
        check_fields(self, where, allowed, "max_pieces", sound=lambda number: 2 <= number <= _MOST_PIECES)

    @property
    def num_classes(self) -> int:
        """The number of classes: the sum of n! for n from 1 to ``max_pieces``."""
        return len(orders(self.max_pieces))

    @property
    def record(self) -> np.dtype:
        """The dtype of a paragraph: where it begins, the tokens of its pieces in the order of the text, its class."""
        lengths = ("lengths", np.int32, (self.max_pieces,))  # 0 where there is no piece
        return np.dtype([("a_start", np.int64), lengths, ("label", np.uint8)])

    def check(self, split: Sentences) -> None:
        check_documents(split)
        chunks.check_sentences(split)

    def plan(self, split: Sentences, key: np.uint64, max_length: int, limits: Limits | None) -> Iterator[Records]:
        del limits
        offsets, starts = np.asarray(split.sentence_offsets), np.asarray(split.document_starts)
        found = False
        for documents in chunks.groups(starts):
            begin, stop = _paragraphs(offsets, starts[documents], starts[documents + 1], max_length - 2)
            found |= len(begin) > 0
            yield self._records(offsets, begin, stop, random.fold(key, begin))
        if not found:
            raise UserError(
                f"no two sentences of a document fit in a row of {max_length} tokens, so there is no order to learn; "
                "take longer rows (config.phases.NAME.max_length)"
            )

    def _records(self, offsets: Ints, begin: Ints, stop: Ints, keys: random.Bits) -> Records:
        """Return the paragraphs [n] of the sentences from ``begin`` [n] to ``stop`` [n], cut and shuffled."""
        sizes = np.array([len(order) for order in orders(self.max_pieces)])  # the pieces of each class
        sentences = stop - begin
        label = random.integers(random.fold(keys, 0), np.searchsorted(sizes, sentences, side="right"))
        cuts = np.repeat(sentences[:, None], self.max_pieces - 1, axis=1)  # sentences before each cut, ascending
        for i in range(self.max_pieces - 1):
            cut = 1 + random.integers(random.fold(keys, 1 + i), np.maximum(sentences - 1 - i, 1))
            for j in range(i):  # of the places that are left
                cut += cut >= cuts[:, j]
            cuts[:, i] = np.where(i < sizes[label] - 1, cut, sentences)
            cuts[:, : i + 1].sort(axis=1)
        borders = offsets[begin[:, None] + np.column_stack([np.zeros_like(begin), cuts, sentences])]
        records = np.empty(len(begin), self.record)
        records["a_start"], records["lengths"], records["label"] = borders[:, 0], np.diff(borders, axis=1), label
        return records

    def _order(self, records: Records) -> Ints:
        """Return which piece of the text stands at each place, [n, max_pieces]; pieces that do not exist come last."""
        every = [(*order, *range(len(order), self.max_pieces)) for order in orders(self.max_pieces)]
        return np.array(every)[records["label"]]

    def lengths(self, records: Records) -> Ints:
        return records["lengths"].sum(axis=1, dtype=np.int64) + self.special_tokens

    def spans(self, records: Records) -> tuple[Ints, Ints]:
        lengths, order = records["lengths"].astype(np.int64), self._order(records)
        starts = records["a_start"][:, None] + np.cumsum(lengths, axis=1) - lengths
        return np.take_along_axis(starts, order, axis=1), np.take_along_axis(lengths, order, axis=1)

    def lay_out(self, split: Sentences, records: Records, tokens: Ids, width: int, facts: TokenFacts) -> Rows:
        del split
        position, lengths = np.arange(width), self.lengths(records)
        real = position < lengths[:, None]
        is_text = real & (position > 0) & (position < lengths[:, None] - 1)
        input_ids = np.where(real, np.int32(facts.sep), np.int32(facts.pad))
        input_ids[:, 0] = facts.cls
        input_ids[is_text] = tokens
        ends = 1 + np.cumsum(self.spans(records)[1], axis=1)  # [n, max_pieces]
        ends = np.where(ends < lengths[:, None] - 1, ends, width)  # no piece begins where the last piece ends
        piece = (position[None, :, None] >= ends[:, None, :]).sum(axis=2)  # [n, L]
        types = np.where(real, piece % 2, 0).astype(np.int32)
        return Rows(input_ids, types, real.astype(np.int32), is_text, lengths)

    def labels(self, records: Records) -> dict[str, np.ndarray]:
        return sentence_pairs.features_of(self.label, records["label"])


def _paragraphs(offsets: Ints, begin: Ints, end: Ints, capacity: int) -> tuple[Ints, Ints]:
    """Return the first and the last + 1 sentence of each paragraph of documents, in the order of the text.

    Each turn of the loop makes the next paragraph of every unfinished document.

    Args:
      begin, end: [n] the first and the last + 1 sentence of the documents.
      capacity: the most tokens of a paragraph.
    """
    turns = []
    while begin.size:
        stop = np.searchsorted(offsets, offsets[begin] + capacity, side="right") - 1
        stop = np.clip(stop, begin + 1, end)
        turns.append(np.stack([begin, stop]))
        going = stop + 1 < end
        begin, end = stop[going] + 1, end[going]
    found = np.concatenate(turns, axis=1)
    found = found[:, np.argsort(found[0])]
    found = found[:, found[1] - found[0] > 1]
    return found[0], found[1]
