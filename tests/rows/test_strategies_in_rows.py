"""The rows that come of each strategy: what its pieces become, boundaries, and packing.

Every law has a power check: the same test of another law fails.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax.rows import random
from bert_jax.rows.interfaces import Rows, Selected
from bert_jax.rows.masking import MaskingConfig, mask_rows, span_boundaries
from bert_jax.rows.rows_config import RowsConfig
from bert_jax.rows.sequence_rows import SequenceRows
from tests.rows.fakes import FACTS, FakeSplit, fake_split, z
from tests.rows.test_strategies import text


def rows_of(count: int, length: int, sizes: Any) -> tuple[Rows, Any]:
    """Rows of random pieces, and the column of their units."""
    candidates, starts = text(count, length, sizes)
    ids = np.where(candidates, np.random.default_rng(1).integers(5, 1000, candidates.shape), FACTS.sep).astype(np.int32)
    real = np.ones_like(ids)
    column = np.where(starts, 1, 2).astype(np.uint8)
    return Rows(ids, 0 * ids, real, candidates, real.sum(axis=1), column), column


def masked(count: int, length: int, sizes: Any, **config: Any) -> tuple[Rows, dict[str, np.ndarray], Selected]:
    """Rows, their features and the selected positions; the units are in a column."""
    rows, column = rows_of(count, length, sizes)
    masking = MaskingConfig(**{"unit": "units"} | config)
    keys = random.fold(random.key("fates"), np.arange(count))
    found = mask_rows(rows, keys, masking, FACTS, length, np.array([7, 7, 9], np.int32))
    select, own = masking.selection
    starts = rows.is_text & (column == 1)
    counts = masking.counts(rows.lengths, rows.is_text.sum(axis=1), length, keys)
    return rows, found, select(rows.is_text, starts, counts, random.fold(keys, 0), own)


@pytest.mark.parametrize("name", ["whole_unit", "bernoulli", "ngrams"])
def test_each_piece_of_a_unit_has_a_fate_of_its_own(name: str) -> None:
    rows, found, selected = masked(4000, 64, (2,), strategy=name)
    both = selected.positions[:, 1:-1:2]  # units are pairs from position 1 on
    hidden = found["input_ids"] == FACTS.mask
    whole, begun = (hidden[:, 1:-1:2] & hidden[:, 2::2])[both], hidden[:, 1:-1:2][both]
    assert abs(z(whole.sum(), len(whole), 0.64)) < 4
    assert abs(z(begun.sum(), len(begun), 0.8)) < 4
    assert abs(z(whole.sum(), len(whole), 0.8)) > 10  # the power check: one fate a unit


def test_a_span_has_one_fate_at_every_length() -> None:
    for fates, rate in (("span", lambda length: 0.8), ("token", lambda length: 0.8**length)):
        _, found, selected = masked(3000, 128, (1,), strategy="spans", fates=fates, random_share=0.0)
        owner = (selected.first + np.arange(3000)[:, None] * 128)[selected.positions]
        size = np.bincount(owner)
        hidden = np.bincount(owner, (found["input_ids"] == FACTS.mask)[selected.positions], minlength=len(size))
        for length in range(1, 7):
            spans_of = size == length
            assert abs(z((hidden[spans_of] == length).sum(), spans_of.sum(), rate(length))) < 4
        assert (size == 6).sum() * 0.8 * 0.2 > 10 * (0.8 - 0.8**6) ** -2  # enough of them to tell the two apart


def test_random_pieces_come_from_where_they_are_said_to() -> None:
    for pieces, allowed in (("unigram", {7, 9}), ("vocabulary", set(range(FACTS.vocab_size)))):
        rows, found, selected = masked(
            600, 64, (1,), strategy="token", unit="piece", mask_share=0.0, random_share=1.0, random_pieces=pieces
        )
        seen = found["input_ids"][selected.positions]
        assert set(seen.tolist()) <= allowed
        if pieces == "unigram":
            assert abs(z((seen == 7).sum(), len(seen), 2 / 3)) < 4
        else:
            assert len(set(seen.tolist())) > 900  # the power check


def test_unigram_pieces_are_those_of_the_text(tmp_path: Path) -> None:
    few = FakeSplit([np.full(20, 30)] * 40, tokens=np.tile([20, 21, 21, 21], 6000))
    masking = MaskingConfig(mask_share=0.0, random_share=1.0, random_pieces="unigram")
    source = SequenceRows(RowsConfig(64, masking=masking, arrangement="sentences"), few, FACTS, seed=0)
    found = source.rows(np.zeros(300, int), np.arange(300) % source.rows_per_epoch)
    row, slot = np.nonzero(found["masked_weights"])
    seen = found["input_ids"][row, found["masked_positions"][row, slot]]
    assert set(seen.tolist()) == {20, 21}
    assert (seen == 21).mean() == pytest.approx(0.75, abs=0.05)


@pytest.mark.parametrize("strategy", ["token", "whole_unit", "spans"])
def test_boundaries_are_beside_runs_and_never_special_tokens(strategy: str) -> None:
    """Every strategy is tried, in text with [CLS], a [SEP] between documents and the last [SEP]."""
    is_text = np.ones((300, 16), bool)
    is_text[:, [0, 8, 13, 14, 15]] = False
    zeros = np.zeros_like(is_text, np.int32)
    rows = Rows(zeros + 9, zeros, zeros, is_text, np.full(300, 14))
    config = MaskingConfig(strategy=strategy, rate=6 / 14)
    keys = random.fold(random.key("edges"), np.arange(300))
    found = mask_rows(rows, keys, config, FACTS, 6)
    found |= span_boundaries(found, rows.is_text)
    names = ("masked_positions", "span_left", "span_right", "span_offsets")
    with_sides = 0
    for positions, *sides in zip(*(found[name].tolist() for name in names), strict=True):
        assert len(set(positions)) == 6
        for position, *given in zip(positions, *sides, strict=True):
            left = next(p for p in range(position, -1, -1) if p not in positions)
            right = next(p for p in range(position, 16) if p not in positions)
            inside = is_text[0, left] and is_text[0, right]
            assert given == ([left, right, position - left - 1] if inside else [0, 0, 0])
            with_sides += inside
    assert 300 < with_sides < 1500


PACKED = [("spans", "span", {}), ("ngrams", "token", {}), ("bernoulli", "token", {}), ("whole_unit", "token", {})]


@pytest.mark.parametrize(("name", "fates", "options"), PACKED)
def test_a_sequence_says_the_same_packed_and_alone(name: str, fates: Any, options: Any, tmp_path: Path) -> None:
    split = fake_split(120, sentences=(1, 6), mean=9)
    split.units = 1 + (np.random.default_rng(0).random(split.num_tokens) < 0.3).astype(np.uint8)  # type: ignore[attr-defined]
    masking = MaskingConfig(strategy=name, unit="units", fates=fates, options=options)
    found = {}
    for packing in ("none", "packed"):
        config = RowsConfig(
            128,
            masking=masking,
            packing=packing,  # type: ignore[arg-type]
            arrangement="sentences",
            arrangement_options={"blocks": "document"},
        )
        config = dataclasses.replace(config, features=config.possible)
        source = SequenceRows(config, split, FACTS, seed=0, directory=tmp_path)
        rows = source.rows(np.zeros(source.rows_per_epoch, int), np.arange(source.rows_per_epoch))
        ids, targets = set(), 0
        for row in range(source.rows_per_epoch):
            sequence = rows.get("sequence_ids", rows["attention_mask"])[row]
            real = rows["masked_weights"][row] > 0
            targets += real.sum()
            owner = sequence[rows["masked_positions"][row]]
            for number in range(1, sequence.max() + 1):
                here, slots = np.flatnonzero(sequence == number), real & (owner == number)
                places = [rows[n][row, slots] - here[0] for n in ("masked_positions", "span_left", "span_right")]
                values = [rows[n][row, slots] for n in ("masked_labels", "span_offsets")]
                ids.add(tuple(x.tobytes() for x in (rows["input_ids"][row, here], *places, *values)))
        found[packing] = ids, targets, source.rows_per_epoch
    assert found["none"][:2] == found["packed"][:2]
    assert found["packed"][2] < 0.7 * found["none"][2]  # several sequences a row


def test_rows_without_any_target_are_rows(tmp_path: Path) -> None:
    masking = MaskingConfig(strategy="bernoulli", rate=1e-9)
    for packing in ("none", "packed"):
        config = RowsConfig(64, masking=masking, packing=packing, arrangement="sentences")  # type: ignore[arg-type]
        config = dataclasses.replace(config, features=config.possible)
        source = SequenceRows(config, fake_split(20), FACTS, seed=0, directory=tmp_path)
        rows = source.rows(np.zeros(4, int), np.arange(4))
        assert not rows["masked_weights"].any()
        assert rows["attention_mask"].any(axis=1).all()


def test_packed_rows_of_random_counts_lose_next_to_nothing(tmp_path: Path) -> None:
    split = fake_split(1500, sentences=(1, 6), mean=9)
    masking = MaskingConfig(strategy="bernoulli")
    config = RowsConfig(
        128, masking=masking, packing="packed", arrangement="sentences", arrangement_options={"blocks": "document"}
    )
    source = SequenceRows(config, split, FACTS, seed=0, directory=tmp_path)
    indices = np.arange(source.rows_per_epoch)
    rows = source.rows(0 * indices, indices)
    full = rows["masked_weights"].sum(axis=1) == config.predictions()
    assert full.mean() < 1e-2
    tight = RowsConfig(
        128,
        masking=MaskingConfig(strategy="bernoulli", max_predictions=20),
        packing="packed",
        arrangement="sentences",
        arrangement_options={"blocks": "document"},
    )
    found = SequenceRows(tight, split, FACTS, seed=0, directory=tmp_path).rows(0 * indices[:50], indices[:50])
    assert (found["masked_weights"].sum(axis=1) == 20).sum() > 5  # the power check: there is a clip
