"""Segments of one line: the whole text, document after document in the order of the corpus, cut every L tokens.

A separator ends each document: [SEP], or the end token of a GPT; with the tokenizer of GPT-1, which has neither, there
is none. A segment begins where the segment before it ends, in the middle of a sentence or a document. The segments are
dealt in lanes (``rows.lanes``), so that a model with memory reads on (Transformer-XL, Dai et al. 2019, section 3.2).

``next_ids`` is the token after each segment, so every token of the line but the first is predicted. The last tokens,
which fill no segment, are left out, and so are the last segments, which fill no step of all lanes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from bert_jax.rows.interfaces import Field, Ids, Ints, Limits, Records, Rows, Sentences, TokenFacts, check_documents
from bert_jax.rows.lanes import LANE_STARTS

_SEGMENTS_AT_ONCE = 1 << 18


@dataclasses.dataclass(frozen=True)
class Arrangement:
    """Cuts the text into segments of as many tokens as a row has positions. It has no options."""

    version = 1
    special_tokens = 0
    shortest = 2
    record = np.dtype(
        [
            ("a_start", np.int64),  # offset in the split of the first token of text
            ("length", np.int32),  # tokens of text in the segment and the token after it
            ("begin", np.int64),  # number in the line of the segment's first token
            ("document", np.int64),  # index of the first document whose separator is not before the segment
            ("separators", np.int32),  # separators in the segment and the token after it
        ]
    )
    fields: ClassVar[dict[str, Field]] = {LANE_STARTS: Field("row"), "next_ids": Field("row")}
    separated: ClassVar[int] = 1  # separators after a document

    def with_around(self, around: tuple[int, int]) -> Arrangement:
        """Return the same arrangement for a tokenizer with other special tokens around a text."""
        return Arrangement() if sum(around) else _Bare()

    def check(self, split: Sentences) -> None:
        check_documents(split)

    def plan(self, split: Sentences, key: np.uint64, max_length: int, limits: Limits | None) -> Iterator[Records]:
        del key, limits
        ends = np.asarray(split.sentence_offsets)[np.asarray(split.document_starts)[1:]]
        separators = ends + np.arange(len(ends)) if self.separated else ends[:0]  # places in the line
        count = (int(ends[-1]) + len(separators) - 1) // max_length
        for first in range(0, count, _SEGMENTS_AT_ONCE):
            begin = max_length * np.arange(first, min(first + _SEGMENTS_AT_ONCE, count))
            before, behind = (np.searchsorted(separators, place) for place in (begin, begin + max_length + 1))
            records = np.empty(len(begin), self.record)
            records["a_start"], records["begin"], records["document"] = begin - before, begin, before
            records["separators"] = behind - before
            records["length"] = max_length + 1 - records["separators"]
            yield records

    def lengths(self, records: Records) -> Ints:
        return records["length"].astype(np.int64) + records["separators"] - 1

    def spans(self, records: Records) -> tuple[Ints, Ints]:
        return records["a_start"][:, None], records["length"].astype(np.int64)[:, None]

    def lay_out(self, split: Sentences, records: Records, tokens: Ids, width: int, facts: TokenFacts) -> Rows:
        row = np.repeat(np.arange(len(records)), records["separators"])
        document = records["document"][row] + np.arange(len(row)) - np.searchsorted(row, row)
        place = split.sentence_offsets[split.document_starts[document + 1]] + document - records["begin"][row]
        is_text = np.ones((len(records), width + 1), np.bool_)
        is_text[row, place] = False
        ids = np.full(is_text.shape, facts.end if facts.sep < 0 else facts.sep, np.int32)
        ids[is_text] = tokens
        input_ids = np.ascontiguousarray(ids[:, :-1])
        zeros, ones = np.zeros_like(input_ids), np.ones_like(input_ids)
        following = {"next_ids": ids[:, -1]}
        return Rows(input_ids, zeros, ones, is_text[:, :-1], self.lengths(records), features=following)

    def labels(self, records: Records) -> dict[str, np.ndarray]:
        del records
        return {}


@dataclasses.dataclass(frozen=True)
class _Bare(Arrangement):
    """Cuts a text without separators."""

    separated = 0
