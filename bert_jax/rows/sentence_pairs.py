"""Rows for masked language modelling and next-sentence prediction, each a pure function of its address."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Iterator
from typing import Protocol

import numpy as np

from bert_jax.rows import packing, plan, random
from bert_jax.rows.buckets import by_bucket, part_name
from bert_jax.rows.joining import FlatPairs, flatten, join
from bert_jax.rows.masking import TokenFacts, mask_rows
from bert_jax.rows.pairing import lay_out
from bert_jax.rows.plan_cache import PlanCache
from bert_jax.rows.rows_config import RowsConfig as RowsConfig
from bert_jax.rows.rows_config import bucket_kind
from bert_jax.task import Bucket, RowSource

_WIDTHS = 4  # pairs of at most 1/8, 1/4, 1/2 and all of a packed row are laid out apart: short ones cost less


class Split(plan.Sentences, Protocol):
    """The part of ``corpora.store.CorpusSplit`` that rows read."""

    @property
    def fingerprint(self) -> str: ...

    def read(self, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Tokens of spans, concatenated: int32 [sum(lengths)]."""
        ...


class SentencePairRows(RowSource):
    """A ``task.RowSource``. Held-out rows are those of the held-out split in epoch 0.

    Row ``i`` of an epoch is row ``permutation(i)`` of the epoch's plan: one pair, or with "packed" several. Every epoch
    deals as many rows as epoch 0's plan has: surplus rows of a longer plan are dropped, a shorter one begins again,
    with other masks. The masks of a pair depend on the pair and the epoch, not on what it is packed with.

    With "bucketed" the indices count through the rows of the first bucket, then of the next, and ``rows`` is asked for
    those of one bucket at a time.
    """

    def __init__(
        self,
        config: RowsConfig,
        split: Split,
        facts: TokenFacts,
        *,
        seed: int,
        phase: int = 0,
        kind: str = "",
        directory: str | os.PathLike[str] | None = None,
    ):
        """
        Args:
          split: read by span; must pickle if worker processes make the rows.
          seed, phase: every phase draws its own rows from the same text.
          kind: of the batches; buckets derive their kinds from it.
          directory: the corpus's folder; plans are cached in it, or in the local cache folder (see ``PlanCache``).
        """
        plan.check(split, config.max_length)
        self._split, self._facts, self._config = split, facts, config
        self._seed, self._phase, self._kind, self._directory = seed, phase, kind, directory

    def __getstate__(self) -> dict[str, object]:
        """Open plans stay behind: another process maps them again."""
        return {name: value for name, value in vars(self).items() if name not in ("_plans", "_counts")}

    @property
    def rows_per_epoch(self) -> int:
        """Rows of epoch 0's plan."""
        return sum(self._counts)

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """Those of the rows, shortest first; empty where all rows have one length."""
        if self._config.packing != "bucketed":
            return ()
        longest = self._config.max_length
        return tuple(
            Bucket(bucket_kind(self._kind, length, longest), count, longest // length)
            for length, count in zip(self._config.lengths, self._counts, strict=True)
        )

    def prepare(self, epoch: int) -> None:
        """Begin to plan an epoch in the background."""
        self._plans.prepare(epoch)

    def rows(self, epochs: np.ndarray, indices: np.ndarray) -> dict[str, np.ndarray]:
        """The features of ``batch_spec`` of rows ``indices`` [n], each under ``rows_per_epoch``, of ``epochs`` [n]."""
        epochs, indices = np.asarray(epochs, np.int64), np.asarray(indices, np.int64)
        assert ((indices >= 0) & (indices < self.rows_per_epoch)).all()
        bucket = int(np.searchsorted(np.cumsum(self._counts), indices[0], side="right")) if len(indices) else 0
        length = self._config.lengths[bucket]
        pairs, sizes, keys = self._dealt(epochs, indices - sum(self._counts[:bucket]), bucket)
        features = self._packed(pairs, sizes, keys) if self._config.packing == "packed" else {}
        if not features:
            features = self._masked(pairs, keys, length, self._config.predictions(length))
            features["cls_positions"] = np.zeros((len(pairs), 1), np.int32)
            features["next_sentence_weights"] = np.ones((len(pairs), 1), np.float32)
        labels = np.zeros(features["next_sentence_weights"].shape, np.int32)
        labels[features["next_sentence_weights"] > 0] = pairs["is_random"]
        return {**features, "next_sentence_labels": labels, "row_weights": np.ones(len(indices), np.float32)}

    # ---- Plans ----------------------------------------------------------------------------------------------------

    @functools.cached_property
    def _counts(self) -> tuple[int, ...]:
        """Rows of epoch 0's plan, by bucket."""
        dealt = self._plans.load(0)
        if self._config.packing == "bucketed":
            return tuple(len(dealt[part_name(length)]) for length in self._config.lengths)
        return (len(dealt["row_ends" if self._config.packing == "packed" else "pairs"]),)

    @functools.cached_property
    def _plans(self) -> PlanCache:
        config = self._config
        identity = [plan.VERSION, self._split.fingerprint, config.max_length, config.short_row_probability]
        identity += [self._seed, self._phase, config.packing]
        parts: dict[str, object] = {"pairs": plan.PAIR}
        if config.packing == "packed":
            parts["row_ends"] = np.int64
            limits = config.limits
            identity += [packing.VERSION, packing.WINDOW, limits.max_pairs, limits.predictions, limits.counts.tolist()]
        if config.packing == "bucketed":
            parts = {part_name(length): plan.PAIR for length in config.lengths}
        key = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]
        return PlanCache(self._directory, key, parts, self._make_plan)  # type: ignore[arg-type]

    def _make_plan(self, epoch: int) -> Iterator[tuple[str, np.ndarray]]:
        config = self._config
        key, targets = self._key("plan", epoch), None
        if config.packing == "packed":
            targets = packing.short_targets(self._split, key, config.limits, config.short_row_probability)
        pairs = plan.make(self._split, key, config.max_length, config.short_row_probability, targets)
        if config.packing == "packed":
            yield from packing.pack(pairs, self._key("pack", epoch), config.limits)
        elif config.packing == "bucketed":
            yield from by_bucket(pairs, config.lengths)
        else:
            yield from (("pairs", block) for block in pairs)

    def _key(self, purpose: str, *counters: int) -> np.uint64:
        return random.key(self._split.fingerprint, self._seed, self._phase, purpose, *counters)

    def _dealt(self, epochs: np.ndarray, indices: np.ndarray, bucket: int) -> tuple[plan.Pairs, plan.Ints, random.Bits]:
        """Pairs [m] of rows [n] of a bucket, row after row; how many each row has [n]; the key of each pair [m]."""
        found: list[tuple[plan.Pairs, plan.Ints, random.Bits]] = [
            (np.empty(0, plan.PAIR), np.empty(0, np.int64), np.empty(0, np.uint64))
        ]
        sizes = np.ones(len(indices), np.int64)
        for epoch in np.unique(epochs).tolist():
            which = np.flatnonzero(epochs == epoch)
            dealt, ends = self._part(epoch, bucket)
            count = len(dealt if ends is None else ends)
            again, index = np.divmod(indices[which], count)
            row = random.permuted(self._key("order", epoch, bucket), index, count)
            if ends is not None:
                begin = np.where(row > 0, ends[row - 1], 0)
                sizes[which] = ends[row] - begin
                here = sizes[which]
                row = np.arange(here.sum()) + np.repeat(begin - (np.cumsum(here) - here), here)
                which, again = np.repeat(which, here), np.repeat(again, here)
            pairs = dealt[row]
            keys = random.fold(random.fold(self._key("mask", epoch), again), pairs["a_start"])
            found.append((pairs, which, keys))
        pairs, row_of, keys = (np.concatenate(column) for column in zip(*found, strict=True))
        order = np.argsort(row_of, kind="stable")
        return pairs[order], sizes, keys[order]

    def _part(self, epoch: int, bucket: int) -> tuple[plan.Pairs, np.ndarray | None]:
        """Pairs of a bucket and, of packed rows, the index after each row's last pair."""
        dealt = self._plans.load(epoch)
        if self._config.packing == "bucketed":
            name = part_name(self._config.lengths[bucket])
            # A bucket of a few pairs may have none in another epoch.
            return dealt[name] if len(dealt[name]) else self._plans.load(0)[name], None
        return dealt["pairs"], dealt.get("row_ends")

    # ---- Features -------------------------------------------------------------------------------------------------

    def _masked(self, pairs: plan.Pairs, keys: random.Bits, width: int, room: int) -> dict[str, np.ndarray]:
        """Pairs laid out and masked, each in a row of ``width``."""
        starts = np.stack([pairs["a_start"], pairs["b_start"]], axis=1).reshape(-1)
        lengths = np.stack([pairs["a_length"], pairs["b_length"]], axis=1).reshape(-1).astype(np.int64)
        rows = lay_out(self._split.read(starts, lengths), lengths[::2], lengths[1::2], width, self._facts)
        masking = self._config.masking
        masked = mask_rows(rows.input_ids, rows.is_text, rows.lengths, keys, masking, self._facts, room)
        return {**masked, "token_type_ids": rows.token_type_ids, "attention_mask": rows.attention_mask}

    def _packed(self, pairs: plan.Pairs, sizes: plan.Ints, keys: random.Bits) -> dict[str, np.ndarray]:
        shape = (self._config.max_length, self._config.predictions(), self._config.max_pairs)
        lengths = packing.pair_lengths(pairs)
        return join(self._flat(pairs, lengths, keys), sizes, shape, self._facts.pad)

    def _flat(self, pairs: plan.Pairs, lengths: plan.Ints, keys: random.Bits) -> FlatPairs:
        widths = [self._config.max_length >> halvings for halvings in range(_WIDTHS)]
        groups = []
        for i, width in enumerate(widths):
            shorter = widths[i + 1] if i + 1 < len(widths) else 0
            indices = np.flatnonzero((lengths <= width) & (lengths > shorter))
            groups.append((indices, self._masked(pairs[indices], keys[indices], width, self._config.predictions())))
        return flatten(groups, lengths)
