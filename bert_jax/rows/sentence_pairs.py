"""Rows for masked language modelling and next-sentence prediction, each a pure function of its address."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Iterator
from typing import Protocol

import numpy as np

from bert_jax.errors import UserError
from bert_jax.records import BatchSpec, Feature
from bert_jax.rows import plan, random
from bert_jax.rows.masking import MaskingConfig, TokenFacts, mask_rows
from bert_jax.rows.pairing import lay_out
from bert_jax.rows.plan_cache import PlanCache


class Split(plan.Sentences, Protocol):
    """The part of ``corpora.store.CorpusSplit`` that rows read."""

    @property
    def fingerprint(self) -> str: ...

    def read(self, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Tokens of spans, concatenated: int32 [sum(lengths)]."""
        ...


@dataclasses.dataclass(frozen=True)
class RowsConfig:
    """What a row looks like. Part of a run's identity."""

    max_length: int
    short_row_probability: float = 0.1
    masking: MaskingConfig = MaskingConfig()

    def __post_init__(self) -> None:
        if self.max_length < plan.SPECIAL_TOKENS_PER_ROW + 2:
            raise UserError(f"rows.max_length is {self.max_length}; a pair with its special tokens needs at least 5")
        if not 0 <= self.short_row_probability <= 1:
            raise UserError(f"rows.short_row_probability is {self.short_row_probability}; allowed: 0 to 1")

    def batch_spec(self) -> BatchSpec:
        """Names, shapes and dtypes of the features of a row."""
        row, masked = (self.max_length,), (self.masking.predictions(self.max_length),)
        return {
            "input_ids": Feature(row, "int32"),
            "token_type_ids": Feature(row, "int32"),
            "attention_mask": Feature(row, "int32"),
            "masked_positions": Feature(masked, "int32"),
            "masked_labels": Feature(masked, "int32"),
            "masked_weights": Feature(masked, "float32"),
            "cls_positions": Feature((1,), "int32"),
            "next_sentence_labels": Feature((1,), "int32"),
            "next_sentence_weights": Feature((1,), "float32"),
            "row_weights": Feature((), "float32"),
        }


class SentencePairRows:
    """A ``task.RowSource``. Held-out rows are those of the held-out split in epoch 0.

    Row ``i`` of an epoch is pair ``permutation(i)`` of the epoch's plan, laid out and masked. Every epoch deals as many
    rows as epoch 0's plan has pairs: surplus pairs of a longer plan are dropped, a shorter one begins again, with other
    masks.
    """

    def __init__(
        self,
        config: RowsConfig,
        split: Split,
        facts: TokenFacts,
        *,
        seed: int,
        phase: int = 0,
        directory: str | os.PathLike[str] | None = None,
    ):
        """
        Args:
          split: read by span; must pickle if worker processes make the rows.
          seed, phase: every phase draws its own rows from the same text.
          directory: the corpus's folder; plans are cached in it, or in the local cache folder (see ``PlanCache``).
        """
        plan.check(split, config.max_length, config.short_row_probability)
        self._split, self._facts, self._config = split, facts, config
        self._seed, self._phase, self._directory = seed, phase, directory

    def __getstate__(self) -> dict[str, object]:
        """Open plans stay behind: another process maps them again."""
        return {name: value for name, value in vars(self).items() if name not in ("_plans", "rows_per_epoch")}

    @functools.cached_property
    def rows_per_epoch(self) -> int:
        """Pairs of epoch 0's plan."""
        return len(self._plans.load(0))

    @functools.cached_property
    def _plans(self) -> PlanCache:
        identity = [plan.VERSION, self._split.fingerprint, self._config.max_length, self._config.short_row_probability]
        identity += [self._seed, self._phase]
        key = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]
        return PlanCache(self._directory, key, self._make_plan)

    def _make_plan(self, epoch: int) -> Iterator[plan.Pairs]:
        key = self._key("plan", epoch)
        return plan.make(self._split, key, self._config.max_length, self._config.short_row_probability)

    def _key(self, purpose: str, *counters: int) -> np.uint64:
        return random.key(self._split.fingerprint, self._seed, self._phase, purpose, *counters)

    def prepare(self, epoch: int) -> None:
        """Begin to plan an epoch in the background."""
        self._plans.prepare(epoch)

    def rows(self, epochs: np.ndarray, indices: np.ndarray) -> dict[str, np.ndarray]:
        """The features of ``batch_spec`` of rows ``indices`` [n], each under ``rows_per_epoch``, of ``epochs`` [n]."""
        epochs, indices = np.asarray(epochs, np.int64), np.asarray(indices, np.int64)
        assert ((indices >= 0) & (indices < self.rows_per_epoch)).all()
        pairs = self._pairs(epochs, indices)
        starts = np.stack([pairs["a_start"], pairs["b_start"]], axis=1).reshape(-1)
        lengths = np.stack([pairs["a_length"], pairs["b_length"]], axis=1).reshape(-1).astype(np.int64)
        tokens = self._split.read(starts, lengths)
        rows = lay_out(tokens, lengths[::2], lengths[1::2], self._config.max_length, self._facts)
        keys = random.fold(random.fold(self._key("mask"), epochs), indices)
        masked = mask_rows(rows.input_ids, rows.is_text, rows.lengths, keys, self._config.masking, self._facts)
        count = len(indices)
        return {
            **masked,
            "token_type_ids": rows.token_type_ids,
            "attention_mask": rows.attention_mask,
            "cls_positions": np.zeros((count, 1), np.int32),
            "next_sentence_labels": pairs["is_random"].astype(np.int32)[:, None],
            "next_sentence_weights": np.ones((count, 1), np.float32),
            "row_weights": np.ones(count, np.float32),
        }

    def _pairs(self, epochs: np.ndarray, indices: np.ndarray) -> plan.Pairs:
        pairs = np.empty(len(indices), plan.PAIR)
        for epoch in np.unique(epochs).tolist():
            which = epochs == epoch
            dealt = self._plans.load(epoch)
            order = random.permuted(self._key("order", epoch), indices[which] % len(dealt), len(dealt))
            pairs[which] = dealt[order]
        return pairs
