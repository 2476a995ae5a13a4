"""What a row of sentence pairs looks like."""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np

from bert_jax.configuration import check_choices, check_fields
from bert_jax.errors import UserError
from bert_jax.records import BatchSpec, Feature
from bert_jax.rows.masking import MaskingConfig
from bert_jax.rows.packing import Limits
from bert_jax.rows.plan import SPECIAL_TOKENS_PER_ROW

Packing = Literal["none", "packed", "bucketed"]

_SHORTEST_BUCKET = 16
_BUCKETS = 4


@dataclasses.dataclass(frozen=True)
class RowsConfig:
    """Part of a run's identity.

    Packing is "none", one pair a row; "packed", as many pairs as fit; or "bucketed", one pair a row, with all rows of a
    batch from one bucket of lengths and no longer than that.
    """

    max_length: int
    short_row_probability: float = 0.1
    masking: MaskingConfig = MaskingConfig()
    packing: Packing = "none"
    max_pairs_per_row: int | None = None  # K of packed rows; None: one for 16 positions, 2 to 16

    def __post_init__(self) -> None:
        where, least = "config.objective", SPECIAL_TOKENS_PER_ROW + 2
        if self.max_length < least:
            raise UserError(f"max_length is {self.max_length}; a pair with its special tokens needs at least {least}")
        check_choices(self, where)
        share, pairs = "0 to 1 is allowed", "at least 1, or None, is needed"
        check_fields(self, where, share, "short_row_probability", sound=lambda value: 0 <= value <= 1)
        check_fields(self, where, pairs, "max_pairs_per_row", sound=lambda value: value is None or value >= 1)

    @property
    def max_pairs(self) -> int:
        """K, static for a length."""
        if self.packing != "packed":
            return 1
        return self.max_pairs_per_row or max(2, min(16, self.max_length // 16))

    @property
    def lengths(self) -> tuple[int, ...]:
        """Those that rows come in, ascending: ``max_length``, and with "bucketed" its halves, quarters and eighths."""
        if self.packing != "bucketed":
            return (self.max_length,)
        halved = [self.max_length >> i for i in range(_BUCKETS)]
        return tuple(sorted(n for n in halved if n >= _SHORTEST_BUCKET or n == self.max_length))

    def predictions(self, length: int | None = None) -> int:
        """P of rows of ``length`` (None: ``max_length``), known without a plan: what one pair that fills the row needs.

        A packed row has one more, since the counts of its pairs are rounded one by one; pairs that would need more than
        that are not packed together, so no mask is dropped. ``masking.max_predictions`` is P where it is given.
        """
        one_pair = self.masking.predictions(length or self.max_length)
        return one_pair + (self.packing == "packed" and self.masking.max_predictions is None)

    @property
    def limits(self) -> Limits:
        """Of packed rows."""
        lengths, room = np.arange(self.max_length + 1), self.predictions()
        counts = self.masking.counts(lengths, np.maximum(lengths - SPECIAL_TOKENS_PER_ROW, 1), room)
        return Limits(self.max_length, self.max_pairs, room, counts)

    def batch_spec(self, length: int | None = None) -> BatchSpec:
        """Names, shapes and dtypes of the features of a row of ``length`` (None: ``max_length``)."""
        row, masked, pairs = (length or self.max_length,), (self.predictions(length),), (self.max_pairs,)
        packed = {"position_ids": Feature(row, "int32"), "sequence_ids": Feature(row, "int32")}
        return {
            "input_ids": Feature(row, "int32"),
            "token_type_ids": Feature(row, "int32"),
            "attention_mask": Feature(row, "int32"),
            **(packed if self.packing == "packed" else {}),
            "masked_positions": Feature(masked, "int32"),
            "masked_labels": Feature(masked, "int32"),
            "masked_weights": Feature(masked, "float32"),
            "cls_positions": Feature(pairs, "int32"),
            "next_sentence_labels": Feature(pairs, "int32"),
            "next_sentence_weights": Feature(pairs, "float32"),
            "row_weights": Feature((), "float32"),
        }

    def batch_specs(self, kind: str) -> dict[str, BatchSpec]:
        """By kind of batch: ``kind``, and one for every shorter bucket."""
        return {bucket_kind(kind, n, self.max_length): self.batch_spec(n) for n in reversed(self.lengths)}


def bucket_kind(kind: str, length: int, max_length: int) -> str:
    """The name of the batches of a bucket; the longest has the name of all."""
    return kind if length == max_length else f"{kind}/{length}"
