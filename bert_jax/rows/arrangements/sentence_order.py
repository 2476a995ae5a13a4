"""ALBERT's pairs: [CLS] A [SEP] B [SEP], two segments that follow each other, swapped half of the time.

Lan et al. 2020, section 3.1, and google-research/albert, create_pretraining_data.py. Label 1 means that the segments
are swapped. A chunk of one sentence cannot be divided into two segments: its B comes from another document, and its
label is 1.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from bert_jax.rows import chunks
from bert_jax.rows.arrangements import sentence_pairs
from bert_jax.rows.interfaces import Field, Ints, Records


@dataclasses.dataclass(frozen=True)
class Arrangement(sentence_pairs.Arrangement):
    """Makes ALBERT's pairs. In a plan, ``is_random`` is true if the two segments are not in the order of the text."""

    fields: ClassVar[dict[str, Field]] = {
        "cls_positions": Field("sequence", is_place=True),
        "sentence_order_labels": Field("sequence"),
        "sentence_order_weights": Field("sequence", "float32"),
    }

    def rules(self, max_length: int, targets: Ints | None) -> chunks.Rules:
        return super().rules(max_length, targets)._replace(random_share=0.0, swapped_share=0.5)

    def labels(self, records: Records) -> dict[str, np.ndarray]:
        return {
            "cls_positions": np.zeros(len(records), np.int32),
            "sentence_order_labels": records["is_random"].astype(np.int32),
            "sentence_order_weights": np.ones(len(records), np.float32),
        }
