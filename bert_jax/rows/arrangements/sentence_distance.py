"""Pairs ``[CLS] A [SEP] B [SEP]`` of three distances: neighbours, one document, two documents.

ERNIE 2.0's sentence distance (Sun et al. 2020, section 4.2.2). The label is 0 if B follows A in the text, 1 if B is
from the same document and at least one sentence away from A, 2 if B is from another document. The pairs are BERT's
(``rows.chunks``), with three classes in place of two, so that lengths do not tell the class. Each class has a third of
the pairs, as far as documents allow: no B follows the last sentence of a document, and where a document has no sentence
that is away from A, B is from another document.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from bert_jax.rows import chunks
from bert_jax.rows.arrangements import sentence_pairs
from bert_jax.rows.interfaces import Field, Ints, Limits, Records, Sentences

ADJACENT, SAME_DOCUMENT, OTHER_DOCUMENT = 0, 1, 2


@dataclasses.dataclass(frozen=True)
class Arrangement(sentence_pairs.Arrangement):
    """Makes pairs of three distances."""

    random_share: ClassVar[float] = 2 / 3  # type: ignore[misc]
    record = sentence_pairs.LABELLED
    label, labelled_by = "sentence_distance", "label"
    fields: ClassVar[dict[str, Field]] = sentence_pairs.fields_of(label)
    num_classes: ClassVar[int] = 3

    def plan(self, split: Sentences, key: np.uint64, max_length: int, limits: Limits | None) -> Iterator[Records]:
        documents = split.sentence_offsets[split.document_starts]  # the token offset of each document
        for pairs in super().plan(split, key, max_length, limits):
            records = np.empty(len(pairs), self.record)
            for name in chunks.PAIR.names[:-1]:  # type: ignore[index]
                records[name] = pairs[name]
            a, b = (np.searchsorted(documents, pairs[name], side="right") for name in ("a_start", "b_start"))
            records["label"] = np.where(pairs["is_random"], np.where(a == b, SAME_DOCUMENT, OTHER_DOCUMENT), ADJACENT)
            yield records

    def rules(self, max_length: int, targets: Ints | None) -> chunks.Rules:
        return super().rules(max_length, targets)._replace(same_document_share=0.5)
