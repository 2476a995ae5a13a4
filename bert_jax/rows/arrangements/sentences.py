"""Sequences of one segment, [CLS] text [SEP], with as many whole sentences as fit.

If ``blocks`` is "full", a sequence continues into the next document, with a [SEP] between the two documents
(FULL-SENTENCES in Liu et al. 2019, section 4.2). If it is "document", a sequence ends with its document (DOC-SENTENCES
in the same section; also the single segments of SpanBERT, Joshi et al. 2020, section 3.3). A sentence is cut only if it
is longer than a row. Every epoch has the same sequences, in another order.

With the tokenizer of a GPT, a sequence is the text and the end token, which stands between documents too, as in GPT-2.
Without an end token, as in GPT-1, a sequence is text alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import ClassVar, Literal

import numpy as np

from bert_jax.rows.interfaces import (
    BERT_AROUND,
    Field,
    Ids,
    Ints,
    Limits,
    Records,
    Rows,
    Sentences,
    Split,
    TokenFacts,
    check_documents,
)

_SPECIAL_TOKENS = 2  # [CLS] text [SEP]
_SENTENCES_AT_ONCE = 1 << 20


@dataclasses.dataclass(frozen=True)
class Arrangement:
    """Makes sequences of whole sentences. Its fields are the options of ``config.objective.arrangement_options``."""

    blocks: Literal["full", "document"] = "full"  # full: a row goes on into the next document; document: it does not

    version = 1
    special_tokens = _SPECIAL_TOKENS
    shortest = _SPECIAL_TOKENS + 1
    record = np.dtype(
        [
            ("a_start", np.int64),  # offset in the split of the first token
            ("length", np.int32),  # number of tokens, without special tokens
            ("separators", np.int32),  # number of [SEP]s between documents
            ("sentence", np.int64),  # index of the first sentence
        ]
    )
    fields: ClassVar[dict[str, Field]] = {}
    around: ClassVar[tuple[int, int]] = BERT_AROUND  # the numbers of special tokens before and after a text

    def with_around(self, around: tuple[int, int]) -> Arrangement:
        """Return the same arrangement for a tokenizer with other special tokens around a text."""
        return (_Ended if sum(around) else _Bare)(self.blocks)

    def check(self, split: Sentences) -> None:
        check_documents(split)

    def plan(self, split: Sentences, key: np.uint64, max_length: int, limits: Limits | None) -> Iterator[Records]:
        del key, limits
        offsets, starts = np.asarray(split.sentence_offsets), np.asarray(split.document_starts)
        first, last = 0, len(offsets) - 1
        while first < last:
            stop = min(first + _SENTENCES_AT_ONCE, last)
            records, first = self._block(offsets, starts, first, stop, max_length - self.special_tokens, stop == last)
            yield records

    def _block(
        self, offsets: Ints, starts: Ints, first: int, stop: int, most: int, is_last: bool
    ) -> tuple[Records, int]:
        """Return the sequences that begin in the sentences [first, stop), and the first sentence of the next block."""
        begins, ends = offsets[first:stop], offsets[first + 1 : stop + 1]
        documents = np.searchsorted(starts, np.arange(first, stop), side="right")  # of each sentence, from 1
        whole = offsets[starts[documents]] - offsets[starts[documents - 1]]  # the tokens of the document
        capacity = self.capacities(whole, most)
        separated = documents if self.blocks == "full" and self.special_tokens else 0 * documents
        reach = np.searchsorted(ends + separated, begins + separated + capacity, side="right")  # after the last
        if self.blocks == "document":
            reach = np.minimum(reach, starts[documents] - first)
        # A sentence that is too long stands alone.
        following = np.maximum(reach, np.arange(1, stop - first + 1)).tolist()
        heads, here, count = [], 0, stop - first
        while here < count:
            heads.append(here)
            here = following[here]
        if not is_last and len(heads) > 1:  # the last sequence may go on beyond this block
            here = heads.pop()
        begin = np.array(heads)
        end = np.minimum(np.array(following)[begin], count)
        records = np.empty(len(begin), self.record)
        records["a_start"], records["sentence"] = begins[begin], begin + first
        records["length"] = np.minimum(ends[end - 1] - begins[begin], np.iinfo(np.int32).max)
        records["separators"] = separated[end - 1] - separated[begin]
        return _cut(records, np.where(records["length"] < whole[begin], most, capacity[begin])), first + here

    def capacities(self, documents: Ints, most: int) -> Ints:
        """Return how many tokens [n] are enough for a sequence of ``documents`` of n lengths; a row holds ``most``."""
        return np.full_like(documents, most)

    def lengths(self, records: Records) -> Ints:
        return records["length"].astype(np.int64) + records["separators"] + self.special_tokens

    def spans(self, records: Records) -> tuple[Ints, Ints]:
        return records["a_start"][:, None], records["length"].astype(np.int64)[:, None]

    def lay_out(self, split: Split, records: Records, tokens: Ids, width: int, facts: TokenFacts) -> Rows:
        lengths, (before, after) = self.lengths(records), self.around
        position = np.arange(width, dtype=np.int32)
        real = position < lengths[:, None]
        is_text = real & (position >= before) & (position < lengths[:, None] - after)
        input_ids = np.where(real, np.int32(facts.sep if before else facts.end), np.int32(facts.pad))
        input_ids[:, :before] = facts.cls
        row = np.repeat(np.arange(len(records)), records["separators"])
        number = np.arange(len(row)) - np.searchsorted(row, row)  # index of a separator within its row
        starts = split.document_starts
        document = np.searchsorted(starts, records["sentence"], side="right")[row] + number
        inside = split.sentence_offsets[starts[document]] - records["a_start"][row] + number + before
        is_text[row, inside] = False
        input_ids[is_text] = tokens
        return Rows(input_ids, np.zeros_like(input_ids), real.astype(np.int32), is_text, lengths)

    def labels(self, records: Records) -> dict[str, np.ndarray]:
        del records
        return {}


@dataclasses.dataclass(frozen=True)
class _Ended(Arrangement):
    """Makes sequences of a text and the end token."""

    special_tokens, shortest, around = 1, 2, (0, 1)


@dataclasses.dataclass(frozen=True)
class _Bare(Arrangement):
    """Makes sequences of text alone."""

    special_tokens, shortest, around = 0, 2, (0, 0)


def _cut(records: Records, capacity: Ints) -> Records:
    """Return ``records`` [n] with every sentence of more than ``capacity`` [n] tokens cut into several sequences."""
    parts = -(-records["length"].astype(np.int64) // capacity)
    parts = np.where(records["separators"] > 0, 1, parts)
    if (parts <= 1).all():
        return records
    number, capacity = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts), np.repeat(capacity, parts)
    cut = np.repeat(records, parts)
    cut["a_start"] += number * capacity
    cut["length"] = np.minimum(cut["length"] - number * capacity, capacity)
    return cut
