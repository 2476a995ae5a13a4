"""Segments of a document, ``[CLS] A [SEP]``, and whether each token occurs elsewhere in the document.

ERNIE 2.0's token-document relation (Sun et al. 2020, section 4.2.1), for which there is no public code. Label 1 means
that the same piece stands in the document outside of the segment, among the ``context`` tokens before the segment and
the ``context`` tokens after it, which bounds what is read for a row. A segment has as many whole sentences as fit in a
row, and in half of its document: a document that fits in one row would have no other segment.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from bert_jax.configuration import check_fields
from bert_jax.rows.arrangements import sentences
from bert_jax.rows.interfaces import Field, Ids, Ints, Records, Rows, Split, TokenFacts


@dataclasses.dataclass(frozen=True)
class Arrangement(sentences.Arrangement):
    """Makes segments. Its fields are the options of ``config.objective.arrangement_options``."""

    context: int = 4096  # tokens of the document before the segment, and after it, in which a token may occur again

    blocks: ClassVar[str] = "document"  # type: ignore[assignment, misc]
    version = 1
    fields: ClassVar[dict[str, Field]] = {
        "token_document_labels": Field("position"),
        "token_document_weights": Field("position", "float32"),
    }

    def __post_init__(self) -> None:
        where = "config.objective.arrangement_options"
        check_fields(self, where, "at least 1 is needed", "context", sound=lambda number: number >= 1)

    def capacities(self, documents: Ints, most: int) -> Ints:
        return np.minimum(most, (documents + 1) // 2)

    def lay_out(self, split: Split, records: Records, tokens: Ids, width: int, facts: TokenFacts) -> Rows:
        """Return the rows with labels and weights [n, L]; the weight is 1 on text, unless nothing else is read."""
        rows = super().lay_out(split, records, tokens, width, facts)
        begin, end = records["a_start"], records["a_start"] + records["length"]
        document = np.searchsorted(split.document_starts, records["sentence"], side="right")
        first, last = (split.sentence_offsets[split.document_starts[of]] for of in (document - 1, document))
        starts = np.stack([np.maximum(begin - self.context, first), end], axis=1)
        stops = np.stack([begin, np.minimum(end + self.context, last)], axis=1)
        others = split.read(starts.reshape(-1), (stops - starts).reshape(-1))
        sizes = (stops - starts).sum(axis=1)
        labels, seen = np.zeros_like(rows.input_ids), np.zeros(facts.vocab_size, np.bool_)
        for row, around in zip(range(len(records)), np.split(others, np.cumsum(sizes)[:-1]), strict=False):
            seen[around] = True
            labels[row] = seen[rows.input_ids[row]]
            seen[around] = False
        weights = rows.is_text & (sizes > 0)[:, None]
        features = {"token_document_labels": labels * weights, "token_document_weights": weights.astype(np.float32)}
        return rows._replace(features=features)
