"""Makes the masked, packed rows of a corpus and decides their order; a row depends on its epoch and index alone."""

from __future__ import annotations

import copy
import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Iterator

import numpy as np

from bert_jax.errors import UserError
from bert_jax.parts import catalogue
from bert_jax.rows import lanes, packing, random, units
from bert_jax.rows.interfaces import BERT_AROUND, Bools, Ids, Ints, Records, Split, TokenFacts
from bert_jax.rows.lanes import LANE_STARTS
from bert_jax.rows.masking import DRAWS, draws, mask_rows, span_boundaries
from bert_jax.rows.plan_cache import PlanCache
from bert_jax.rows.rows_config import RowsConfig
from bert_jax.task import Bucket, RowSource

_WIDTHS = 4  # sequences up to 1/8, 1/4, 1/2 and 1 of a packed row are laid out separately, so short sequences cost less
SAMPLED = 1 << 16  # the number of tokens that show how common pieces are, and from which random pieces are drawn


class SequenceRows(RowSource):
    """A ``task.RowSource`` of the rows of a split. The held-out rows are the rows of the held-out split in epoch 0.

    Row ``i`` of an epoch is row ``permutation(i)`` of the epoch's plan: one sequence, or several if packing is
    "packed". Every epoch has as many rows as the plan of epoch 0. If an epoch's plan has more rows, some are left out.
    If it has fewer, the epoch goes through them again, with other masks. The masks of a sequence depend on the sequence
    and the epoch, not on the sequences that share its row.

    If packing is "bucketed", row numbers count through the rows of the first bucket, then of the next, and all rows of
    one call of ``rows`` must be of one bucket.

    If the arrangement has ``lane_starts``, the sequences stay in their order, which is the same in every epoch, and
    ``for_batches`` deals them to the lanes of a batch; before, they are one lane.
    """

    _lanes = 1

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
          split: the text; it must be picklable if worker processes make the rows.
          seed, phase: numbers on which all random draws depend, so that every phase makes its own rows of the same
            text.
          directory: the corpus's folder, in which plans are cached if it can be written (see ``PlanCache``).
        """
        config = dataclasses.replace(config, around=facts.around)
        config.arranger.check(split)
        self._split, self._facts, self._config = split, facts, config
        self._seed, self._phase, self._directory = seed, phase, directory

    def __getstate__(self) -> dict[str, object]:
        """Return the state to pickle, without the open plans, which the other process opens again."""
        return {name: value for name, value in vars(self).items() if name not in ("_plans", "_counts", "_sample")}

    @property
    def rows_per_epoch(self) -> int:
        """Return the number of rows of every epoch, which is the number of rows in the plan of epoch 0."""
        count = sum(self._counts)
        return count - count % self._lanes

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """Return the buckets of the rows, shortest first; empty if all rows have one length."""
        if self._config.packing != "bucketed":
            return ()
        config = self._config
        return tuple(
            Bucket(config.kind_of(length), count, config.max_length // length)
            for length, count in zip(config.lengths, self._counts, strict=True)
        )

    def prepare(self, epoch: int) -> None:
        """Begin to plan an epoch in the background."""
        if not self._config.in_lanes:
            self._plans.prepare(epoch)

    def for_batches(self, batch_size: int) -> SequenceRows:
        """See ``RowSource``. Rows that fill no step of all lanes are left out, at the end of the text."""
        if not self._config.in_lanes:
            return self
        count = sum(self._counts)
        if count < batch_size:
            raise UserError(
                f"config.phases.{self._config.kind}.batch_size is {batch_size}, and each row of a batch reads its own "
                f"part of the text, which has {count} rows of {self._config.max_length} tokens; take more text (of "
                "held-out text with config.corpus.heldout_fraction), smaller batches or shorter rows"
            )
        other = copy.copy(self)
        other._lanes = batch_size
        return other

    def rows(self, epochs: np.ndarray, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Return the features of ``batch_spec`` for rows ``indices`` [n] of ``epochs`` [n].

        Indices are below ``rows_per_epoch``.
        """
        epochs, indices = np.asarray(epochs, np.int64), np.asarray(indices, np.int64)
        assert ((indices >= 0) & (indices < self.rows_per_epoch)).all()
        bucket = int(np.searchsorted(np.cumsum(self._counts), indices[0], side="right")) if len(indices) else 0
        length = self._config.lengths[bucket]
        records, sizes, keys = self._deal(epochs, indices - sum(self._counts[:bucket]), bucket)
        if self._config.packing == "packed":
            features = self._pack(records, sizes, keys)
        else:
            labels = self._config.arranger.labels(records)
            features = self._mask(records, keys, length, self._config.predictions(length))
            features |= {name: values[:, None] for name, values in labels.items()}
        features["row_weights"] = np.ones(len(indices), np.float32)
        if self._config.in_lanes:
            features[LANE_STARTS] = lanes.starts(epochs, indices, self._lanes)
        return {name: features[name] for name in self._config.batch_spec(length)}

    # ---- Plans ----------------------------------------------------------------------------------------------------

    @functools.cached_property
    def _counts(self) -> tuple[int, ...]:
        """Return the number of rows of epoch 0's plan, for each bucket."""
        plan = self._plans.load(0)
        if self._config.packing == "bucketed":
            return tuple(len(plan[_bucket_name(length)]) for length in self._config.lengths)
        return (len(plan["row_ends" if self._config.packing == "packed" else "sequences"]),)

    @functools.cached_property
    def _plans(self) -> PlanCache:
        config, arranger = self._config, self._config.arranger
        options = dataclasses.asdict(arranger)  # type: ignore[call-overload]
        identity = [config.arrangement, arranger.version, options, self._split.fingerprint, config.max_length]
        identity += [self._seed, self._phase, config.packing]
        identity += [config.around] if config.around != BERT_AROUND else []
        dtypes: dict[str, object] = {"sequences": arranger.record}
        if config.packing == "packed":
            dtypes["row_ends"] = np.int64
            limits = config.limits
            most = [limits.max_sequences, limits.predictions, limits.counts.tolist()]
            identity += [packing.VERSION, packing.WINDOW, most]
        if config.packing == "bucketed":
            dtypes = {_bucket_name(length): arranger.record for length in config.lengths}
        key = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]
        return PlanCache(self._directory, key, dtypes, self._make_plan)  # type: ignore[arg-type]

    def _make_plan(self, epoch: int) -> Iterator[tuple[str, np.ndarray]]:
        config, arranger = self._config, self._config.arranger
        limits = config.limits if config.packing == "packed" else None
        blocks = self._ascending(arranger.plan(self._split, self._key("plan", epoch), config.max_length, limits))
        if limits is not None:
            yield from packing.pack(blocks, arranger.lengths, self._key("pack", epoch), limits)
        elif config.packing == "bucketed":
            for block in blocks:  # a sequence belongs to the shortest rows that it fits
                bucket = np.searchsorted(config.lengths, arranger.lengths(block))
                yield from ((_bucket_name(length), block[bucket == i]) for i, length in enumerate(config.lengths))
        else:
            yield from (("sequences", block) for block in blocks)

    def _ascending(self, blocks: Iterator[Records]) -> Iterator[Records]:
        """Yield ``blocks``; raise ``UserError`` if a sequence does not begin after the one before it."""
        before = -1
        for block in blocks:
            starts = np.append(before, block["a_start"])
            if len(wrong := np.flatnonzero(np.diff(starts) <= 0)):
                first, second = starts[wrong[0] : wrong[0] + 2]
                raise UserError(
                    f"arrangement {catalogue.display_name(self._config.arrangement)}: plan yields a sequence with "
                    f"a_start {second} after one with {first}; every random draw is keyed by a_start, which has to be "
                    "different for all sequences of an epoch, in ascending order"
                )
            before = starts[-1]
            yield block

    def _key(self, purpose: str, *counters: int) -> np.uint64:
        return random.key(self._split.fingerprint, self._seed, self._phase, purpose, *counters)

    def _deal(self, epochs: np.ndarray, indices: np.ndarray, bucket: int) -> tuple[Records, Ints, random.Bits]:
        """Return the m sequences of n rows of a bucket, row after row, their number per row [n], and mask keys [m]."""
        columns: list[tuple[Records, Ints, random.Bits]] = [
            (np.empty(0, self._config.arranger.record), np.empty(0, np.int64), np.empty(0, np.uint64))
        ]
        sizes, copies = np.ones(len(indices), np.int64), self._config.masking.copies
        for epoch in np.unique(epochs).tolist():
            which = np.flatnonzero(epochs == epoch)
            plan, ends = self._plan_of(epoch, bucket)
            count = len(plan if ends is None else ends)
            again, index = np.divmod(indices[which], count)
            if self._config.in_lanes:
                row = lanes.sequences(epoch, index, self._lanes, count // self._lanes)
            else:
                row = random.permute(self._key("order", epoch, bucket), index, count)
            if ends is not None:
                begin = np.where(row > 0, ends[row - 1], 0)
                sizes[which] = ends[row] - begin
                here = sizes[which]
                row = np.arange(here.sum()) + np.repeat(begin - (np.cumsum(here) - here), here)
                which, again = np.repeat(which, here), np.repeat(again, here)
            records = plan[row]
            key = self._key("mask", epoch % copies if copies else epoch)
            keys = random.fold(random.fold(key, again), records["a_start"])
            columns.append((records, which, keys))
        records, row_of, keys = (np.concatenate(column) for column in zip(*columns, strict=True))
        order = np.argsort(row_of, kind="stable")
        return records[order], sizes, keys[order]

    def _plan_of(self, epoch: int, bucket: int) -> tuple[Records, np.ndarray | None]:
        """Return the sequences of a bucket and, if rows are packed, the index after each row's last sequence."""
        plan = self._plans.load(0 if self._config.in_lanes else epoch)
        if self._config.packing == "bucketed":
            name = _bucket_name(self._config.lengths[bucket])
            # A bucket with few sequences may have none in another epoch.
            return plan[name] if len(plan[name]) else self._plans.load(0)[name], None
        return plan["sequences"], plan.get("row_ends")

    # ---- Features -------------------------------------------------------------------------------------------------

    @functools.cached_property
    def _sample(self) -> np.ndarray | None:
        """Return at most 65,536 tokens from evenly spaced places of the text; None if masking does not need them."""
        if not self._config.masking.samples_text:
            return None
        tokens = int(self._split.sentence_offsets[-1])
        starts = np.unique(np.linspace(0, tokens - 1, min(SAMPLED, tokens)).astype(np.int64))
        return self._split.read(starts, np.ones_like(starts))

    def _mask(self, records: Records, keys: random.Bits, width: int, predictions: int) -> dict[str, np.ndarray]:
        """Return the features of sequences, each laid out and masked in a row of ``width`` positions."""
        arranger, masking = self._config.arranger, self._config.masking
        starts, lengths = arranger.spans(records)
        tokens = self._split.read(starts.reshape(-1), lengths.reshape(-1))
        rows = arranger.lay_out(self._split, records, tokens, width, self._facts)
        text = starts, lengths, rows.is_text
        if units.columns([masking.unit]):
            rows = rows._replace(column=self._column(masking.unit, *text))
        features = mask_rows(rows, keys, masking, self._facts, predictions, self._sample)
        if self._config.boundaries:
            features |= span_boundaries(features, rows.is_text)
        if DRAWS in self._config.fields:
            features[DRAWS] = draws(keys, width)
        features |= rows.features
        features |= {name: self._column(name, *text) for name in self._config.columns if name in self._config.fields}
        return {**features, "token_type_ids": rows.token_type_ids, "attention_mask": rows.attention_mask}

    def _column(self, name: str, starts: Ints, lengths: Ints, is_text: Bools) -> Ids:
        """Return the values [n, L] of a column of the corpus, 0 where no text is.

        ``starts`` and ``lengths`` [n, S] are the spans of the rows. A row may show fewer tokens than its spans have:
        the token after its last one is a label.
        """
        read, shown = lengths.sum(axis=1), is_text.sum(axis=1)
        place = np.arange(read.sum()) - np.repeat(np.cumsum(read) - read, read)
        values = np.zeros(is_text.shape, np.int32)
        values[is_text] = self._split.read(starts.reshape(-1), lengths.reshape(-1), name)[
            place < np.repeat(shown, read)
        ]
        return values

    def _pack(self, records: Records, sizes: Ints, keys: random.Bits) -> dict[str, np.ndarray]:
        config, lengths = self._config, self._config.arranger.lengths(records)
        widths = [config.max_length >> halvings for halvings in range(_WIDTHS)]
        groups = []
        for i, width in enumerate(widths):
            shorter = widths[i + 1] if i + 1 < len(widths) else 0
            indices = np.flatnonzero((lengths <= width) & (lengths > shorter))
            groups.append((indices, self._mask(records[indices], keys[indices], width, config.predictions())))
        flat = packing.flatten(groups, lengths, config.arranger.labels(records), config.fields)
        shape = (config.max_length, config.predictions(), config.max_sequences)
        return packing.join(flat, sizes, shape, config.fields, self._facts.pad)


def _bucket_name(length: int) -> str:
    """Return the name of the array of a plan that holds the sequences of rows of ``length``."""
    return f"sequences_{length}"
