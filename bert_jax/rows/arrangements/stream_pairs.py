"""XLNet's rows: text that the next row remembers, then A [SEP] B [SEP] [CLS] (Yang et al. 2019, sections 2.5 and 2.6).

The text is one line: all documents, with a [SEP] between two of them. A row begins with ``reuse_length`` positions of
the line, A is what follows them up to the end of a sentence, and B goes on from there or, for ``random_share`` of the
rows, begins with a sentence elsewhere. The next row begins where the reused positions of this row end, so its memory is
made of them alone. Token types are 0 up to the first [SEP], 1 up to the second and 2 at [CLS], to which an encoder with
two token types adds none.

As in zihangdai/xlnet, data_utils.py, with four differences. There an end-of-document token stands between documents.
There both A and B are shortened if they exceed the row; here B alone. There half of the rows may be read backwards
(``bi_data``); here none. There B is drawn anew in each pass over the text; here pairs are the same in every epoch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from bert_jax.configuration import check_fields
from bert_jax.errors import UserError
from bert_jax.rows import random
from bert_jax.rows.interfaces import Field, Ids, Ints, Limits, Records, Rows, Sentences, TokenFacts, check_documents
from bert_jax.rows.lanes import LANE_STARTS

_SPECIAL_TOKENS = 3  # [SEP], [SEP] and [CLS]
_LEAST_PAIR = _SPECIAL_TOKENS + 2
_ROWS_AT_ONCE = 1 << 18


@dataclasses.dataclass(frozen=True)
class Arrangement:
    """Makes rows of a line of text. Its fields are the options of ``config.objective.arrangement_options``."""

    reuse_length: int | None = None  # the positions at a row's begin that the next row remembers; None: half of the row
    random_share: float = 0.5  # share of the rows whose B comes from elsewhere

    version = 1
    special_tokens = _SPECIAL_TOKENS
    record = np.dtype(
        [
            ("a_start", np.int64),  # offset in the split of the first token of the row
            ("b_start", np.int64),  # the same of B
            ("a_line", np.int64),  # the position in the line with which the row begins
            ("b_line", np.int64),
            ("a_length", np.int32),  # positions of the line before the first [SEP], reused ones included
            ("b_length", np.int32),
            ("a_tokens", np.int32),  # the same without separators of documents
            ("b_tokens", np.int32),
            ("reused", np.int32),
        ]
    )
    fields: ClassVar[dict[str, Field]] = {LANE_STARTS: Field("row"), "reuse_lengths": Field("sequence")}

    def __post_init__(self) -> None:
        where = "config.objective.arrangement_options"
        check_fields(self, where, "0 to 1 is allowed", "random_share", sound=lambda share: 0 <= share <= 1)
        least = "at least 2, or None, is needed"
        check_fields(self, where, least, "reuse_length", sound=lambda n: n is None or n >= 2)

    @property
    def shortest(self) -> int:
        """The length of the shortest row: a pair has at least two tokens."""
        return 2 * _LEAST_PAIR if self.reuse_length is None else self.reuse_length + _LEAST_PAIR

    def reused(self, max_length: int) -> int:
        """Return after how many positions of a row the next row begins."""
        return max_length // 2 if self.reuse_length is None else self.reuse_length

    def check(self, split: Sentences) -> None:
        check_documents(split)

    def plan(self, split: Sentences, key: np.uint64, max_length: int, limits: Limits | None) -> Iterator[Records]:
        del limits
        line, reused = _Line(split), self.reused(max_length)
        pair = max_length - reused - _SPECIAL_TOKENS
        count = (line.length - pair) // reused
        if count < 1:
            raise UserError(
                f"the split has {line.length} tokens, and a row of {max_length} needs {reused + pair} of them in a "
                "line; take more text (of held-out text with config.corpus.heldout_fraction) or shorter rows"
            )
        for first in range(0, count, _ROWS_AT_ONCE):
            begins = np.arange(first, min(count, first + _ROWS_AT_ONCE)) * reused
            yield self._rows(line, random.fold(key, begins), begins, reused, pair)

    def _rows(self, line: _Line, keys: random.Bits, begins: Ints, reused: int, pair: int) -> Records:
        """Return the rows that begin at ``begins`` [n] in the line; A and B have ``pair`` positions."""
        a_line = begins + reused
        first, after = line.sentences(a_line + 1), line.sentences(a_line + pair)  # sentences that begin inside the pair
        cut = line.begin(first + random.integers(random.fold(keys, 0), after - first))
        alone = first == after  # no sentence begins inside: the pair is cut in its middle
        cut = np.where(alone, a_line + (pair + 1) // 2, cut)
        length = a_line + pair - cut
        there = random.integers(random.fold(keys, 1), line.length - length + 1)
        elsewhere = line.begin(line.sentences(there + 1) - 1)  # of the sentence that has this position
        is_random = alone | (random.uniform(random.fold(keys, 2)) < self.random_share)
        records = np.empty(len(begins), self.record)
        records["a_line"], records["a_length"], records["reused"] = begins, cut - begins, reused
        records["b_line"], records["b_length"] = np.where(is_random, elsewhere, cut), length
        for name in ("a", "b"):
            start = line.token(records[f"{name}_line"])
            records[f"{name}_start"] = start
            records[f"{name}_tokens"] = line.token(records[f"{name}_line"] + records[f"{name}_length"]) - start
        return records

    def lengths(self, records: Records) -> Ints:
        return records["a_length"].astype(np.int64) + records["b_length"] + self.special_tokens

    def spans(self, records: Records) -> tuple[Ints, Ints]:
        starts = np.stack([records["a_start"], records["b_start"]], axis=1)
        return starts, np.stack([records["a_tokens"], records["b_tokens"]], axis=1).astype(np.int64)

    def lay_out(self, split: Sentences, records: Records, tokens: Ids, width: int, facts: TokenFacts) -> Rows:
        position = np.arange(width, dtype=np.int32)
        first_sep = records["a_length"][:, None]  # [n, 1]
        last_sep = first_sep + records["b_length"][:, None] + 1
        real, second = position <= last_sep + 1, position > first_sep
        special = (position == first_sep) | (position >= last_sep)
        for name, shift in (("a", 0 * first_sep), ("b", first_sep + 1)):
            row, places = _separators(split, *(records[f"{name}_{of}"] for of in ("line", "start", "length", "tokens")))
            special[row, places + shift[row, 0]] = True
        is_text = real & ~special
        input_ids = np.where(real, np.int32(facts.sep), np.int32(facts.pad))
        input_ids[is_text] = tokens
        np.put_along_axis(input_ids, last_sep + 1, facts.cls, axis=1)
        types = np.where(real, second.astype(np.int32) + (position > last_sep), 0).astype(np.int32)
        return Rows(input_ids, types, real.astype(np.int32), is_text, last_sep[:, 0].astype(np.int64) + 2)

    def labels(self, records: Records) -> dict[str, np.ndarray]:
        return {"reuse_lengths": records["reused"]}


class _Line:
    """All documents of a split, one after another, with a separator between two of them."""

    def __init__(self, split: Sentences):
        self._offsets = np.asarray(split.sentence_offsets)
        self._documents = self._offsets[np.asarray(split.document_starts)[1:-1]]  # tokens before documents 1, 2, ...
        self._separators = self._documents + np.arange(len(self._documents))
        self.length = int(self._offsets[-1]) + len(self._documents)

    def token(self, places: Ints) -> Ints:
        """Return how many tokens stand before ``places`` [n] in the line."""
        return places - np.searchsorted(self._separators, places)

    def sentences(self, places: Ints) -> Ints:
        """Return how many sentences begin before ``places`` [n]."""
        return np.searchsorted(self._offsets[:-1], self.token(places))

    def begin(self, sentences: Ints) -> Ints:
        """Return where ``sentences`` [n] begin."""
        tokens = self._offsets[sentences]
        return tokens + np.searchsorted(self._documents, tokens, side="right")


def _separators(split: Sentences, line: Ints, start: Ints, length: Ints, tokens: Ints) -> tuple[Ints, Ints]:
    """Return the row and the place of each separator in stretches of ``length`` [n] positions from ``line`` [n] on.

    Before a stretch stand ``start`` [n] tokens, and in it ``tokens`` [n]; all else are separators.
    """
    counts = length - tokens
    row = np.repeat(np.arange(len(line)), counts)
    number = (line - start)[row] + np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    return row, split.sentence_offsets[split.document_starts[number + 1]] + number - line[row]
