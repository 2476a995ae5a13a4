"""ALBERT's pairs: [CLS] A [SEP] B [SEP], two segments that follow each other, swapped half of the time.

Lan et al. 2020, section 3.1, and google-research/albert, create_pretraining_data.py. Label 1 means that the segments
are swapped. A chunk of one sentence cannot be divided into two segments: its B comes from another document, and its
label is 1.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from bert_jax.rows import chunks
from bert_jax.rows.arrangements import sentence_pairs
from bert_jax.rows.interfaces import Field, Ints


@dataclasses.dataclass(frozen=True)
class Arrangement(sentence_pairs.Arrangement):
    """Makes ALBERT's pairs. In a plan, ``is_random`` is true if the two segments are not in the order of the text."""

    random_share: float = 0.0  # share of the pairs of several sentences whose B comes from another document

    label = "sentence_order"
    fields: ClassVar[dict[str, Field]] = sentence_pairs.fields_of(label)

    def rules(self, max_length: int, targets: Ints | None) -> chunks.Rules:
        return super().rules(max_length, targets)._replace(swapped_share=0.5)
