"""Which positions the strategies select: laws, atomicity, counts.

Every law has a power check: the same test of another law fails.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bert_jax.parts import catalogue
from bert_jax.rows import random
from bert_jax.rows.interfaces import Selected
from bert_jax.rows.masking import MaskingConfig
from bert_jax.rows.strategies import ngrams, spans
from tests.rows.fakes import chi_square_z, z

NAMES = sorted(catalogue.parts("rows.strategies", having="select"))


def text(count: int, length: int, sizes: Any = (1,), seed: int = 0, special: tuple[int, ...] = ()) -> tuple[Any, Any]:
    """Candidates and starts [n, L]: units of random ``sizes`` between [CLS], ``special`` positions and [SEP]."""
    rng = np.random.default_rng(seed)
    candidates, starts = np.zeros((count, length), bool), np.zeros((count, length), bool)
    candidates[:, 1:-1] = True
    candidates[:, list(special)] = False
    for row, begins in enumerate(starts):
        ends = 1 + np.cumsum(rng.choice(sizes, length))
        begins[[1, *ends[ends < length]]] = True
        begins[1:] |= ~candidates[row, :-1]
    return candidates, starts & candidates


def chosen(name: str, candidates: Any, starts: Any, count: Any, seed: int = 0, **options: Any) -> Selected:
    select, own = MaskingConfig(strategy=name, **options).selection
    keys = random.fold(random.key("strategies", seed), np.arange(len(candidates)))
    return select(candidates, starts, np.broadcast_to(count, len(candidates)), keys, own)


def sizes_of(selected: Selected) -> np.ndarray:
    """The positions of every span, unit or n-gram."""
    assert selected.first is not None
    rows, length = selected.positions.shape
    counts = np.bincount((selected.first + np.arange(rows)[:, None] * length)[selected.positions])
    return counts[counts > 0]


def chi_square(histogram: np.ndarray, shares: np.ndarray) -> float:
    return chi_square_z(histogram, histogram.sum() * shares)


SPAN_SHARES = np.array([0.2241, 0.1793, 0.1434, 0.1147, 0.0918, 0.0734, 0.0587, 0.0470, 0.0376, 0.0301])
SPAN_SHARES /= SPAN_SHARES.sum()
PILED = np.append(0.2 * 0.8 ** np.arange(9), 0.8**9)  # the tail piled on 10: a common misreading


def test_lengths_of_spans_and_ngrams_follow_their_laws() -> None:
    bits = random.fold(random.key("lengths"), np.arange(100_000))
    lengths = spans.Config().lengths(bits)
    histogram = np.bincount(lengths, minlength=11)[1:]
    assert abs(chi_square(histogram, SPAN_SHARES)) < 5
    assert abs(lengths.mean() - 3.797) < 4 * lengths.std() / np.sqrt(len(lengths))
    assert chi_square(histogram, PILED) > 100  # the power check
    shares = np.array([6, 3, 2]) / 11
    drawn = np.bincount(ngrams.Config(shares=(8.0, 1.0, 1.0)).lengths(bits), minlength=4)[1:]
    np.testing.assert_allclose(drawn / len(bits), (0.8, 0.1, 0.1), atol=0.01)
    histogram = np.bincount(ngrams.Config().lengths(bits), minlength=4)[1:]
    assert abs(chi_square(histogram, shares)) < 5
    assert chi_square(histogram, np.full(3, 1 / 3)) > 100
    assert (spans.Config(longest=1).lengths(bits) == 1).all()
    assert (ngrams.Config(longest=1).lengths(bits) == 1).all()


def one_by_one(candidates: Any, starts: Any, count: int, key: Any, options: spans.Config) -> set[int]:
    """The published sampler, a draw after the other."""
    found: set[int] = set()
    places, draw = np.flatnonzero(candidates), 0
    while len(found) < count:
        anchor = int(places[random.integers(random.fold(key, 2 * draw), len(places))[0]])
        units = int(options.lengths(random.fold(key, 2 * draw + 1))[0])
        draw += 1
        if anchor in found:
            continue
        while not starts[anchor]:
            anchor -= 1
        while units and anchor < len(candidates) and candidates[anchor] and len(found) < count:
            found.add(anchor)
            anchor += 1
            units -= anchor == len(candidates) or bool(starts[anchor])
    return found


@pytest.mark.parametrize("share", [0.15, 0.6, 1.0])
def test_spans_are_those_of_the_sampler_drawn_one_by_one(share: float) -> None:
    candidates, starts = text(60, 50, (1, 1, 2, 3), special=(20, 31))
    keys = random.fold(random.key("spans"), np.arange(60))
    counts = np.ceil(share * candidates.sum(axis=1)).astype(int)
    counts[:20] = np.arange(1, 21)
    selected = spans.select(candidates, starts, counts, keys, spans.Config())
    for row in range(60):
        expected = one_by_one(candidates[row], starts[row], counts[row], keys[row], spans.Config())
        assert np.flatnonzero(selected.positions[row]).tolist() == sorted(expected)
    if share < 1:  # the power check: another law is another selection
        assert (
            spans.select(candidates, starts, counts, keys, spans.Config(p=0.5)).positions != selected.positions
        ).any()


PIECES_OF_WORDS = np.random.default_rng(0).geometric(1 / 1.3, 2000)


@pytest.mark.parametrize(
    ("length", "sizes", "merged", "mean"),
    [(510, (1,), 19.6, 3.93), (126, (1,), 5.34, 3.56), (510, PIECES_OF_WORDS, 14.5, 5.30)],
)
def test_merged_spans_are_as_many_and_as_long_as_in_the_original(
    length: int, sizes: Any, merged: float, mean: float
) -> None:
    """Figures are of the published sampler, written with a generator that keeps a state, over 6,000 rows and more."""
    count = 600_000 // length
    candidates, starts = text(count, length + 2, sizes)
    selected = chosen("spans", candidates, starts, int(np.ceil(0.15 * length)))
    found = sizes_of(selected)
    assert found.mean() == pytest.approx(mean, rel=0.02)
    assert len(found) / count == pytest.approx(merged, rel=0.02)
    if merged == 19.6:
        assert (found > 10).mean() == pytest.approx(0.016, abs=0.003)
    # A run of selected positions is one span: the position before the run is not selected.
    first = np.take_along_axis(selected.positions, np.maximum(selected.first - 1, 0), axis=1)
    assert not first[selected.positions].any()


@pytest.mark.parametrize("name", NAMES)
def test_units_are_taken_whole(name: str) -> None:
    candidates, starts = text(800, 64, (1, 2, 3), special=(30,))
    count = 10
    found = chosen(name, candidates, starts, count).positions
    assert not found[~candidates].any()
    unit = np.cumsum(starts, axis=1) + 1000 * np.arange(800)[:, None]
    size, taken = (np.bincount(unit[which], minlength=unit.max() + 1) for which in (candidates, found))
    cut = (taken > 0) & (taken < size)  # units of which a part is selected
    if name == "token":
        assert cut.sum() > 1000  # the power check
        return
    assert cut.sum() <= (800 if name == "spans" else 0)  # the last span of a row may be cut
    assert found.sum(axis=1).max() <= count
    if name in ("whole_unit", "ngrams"):
        assert found.sum(axis=1).min() >= count - 2
    if name == "spans":
        assert (found.sum(axis=1) == count).all()
    last = np.maximum.accumulate(np.where(starts, np.arange(64), 0), axis=1)[:, -2]  # the unit before the last [SEP]
    assert found[np.arange(800), last].mean() > 0.05
    assert found[:, 31].mean() > 0.05  # and the unit after a [SEP] inside


@pytest.mark.parametrize("name", NAMES)
def test_a_row_depends_on_its_own_key_alone(name: str) -> None:
    candidates, starts = text(50, 40, (1, 2))
    keys = random.fold(random.key("rows"), np.arange(50))
    select, own = MaskingConfig(strategy=name).selection
    counts = np.arange(50) % 9 + 1
    every, some = select(candidates, starts, counts, keys, own), np.array([41, 3, 17])
    wide = [np.pad(x[some], ((0, 0), (0, 24))) for x in (candidates, starts)]  # nor on how wide the row is
    few = select(*wide, counts[some], keys[some], own)
    np.testing.assert_array_equal(few.positions[:, :40], every.positions[some])
    if every.first is not None:
        np.testing.assert_array_equal(
            few.first[:, :40][few.positions[:, :40]], every.first[some][every.positions[some]]
        )
    assert (select(candidates, starts, counts, keys + np.uint64(1), own).positions != every.positions).any()


def test_whole_units_of_one_position_are_plain_masking() -> None:
    candidates, starts = text(200, 64)
    plain, whole = (chosen(name, candidates, starts, 9).positions for name in ("token", "whole_unit"))
    np.testing.assert_array_equal(plain, whole)
    _, longer = text(200, 64, (1, 2))
    assert (chosen("whole_unit", candidates, longer, 9).positions != plain).any()


def test_long_units_are_taken_less_often_near_the_count() -> None:
    candidates, starts = text(4000, 64, (1, 1, 1, 4))
    found = chosen("whole_unit", candidates, starts, 9).positions
    size = np.diff(np.flatnonzero(np.append(starts.ravel(), True)))  # of units; the last of a row has [SEP]s
    taken = found.ravel()[np.flatnonzero(starts)]
    assert taken[size == 4].mean() < 0.9 * taken[size == 1].mean()


def test_an_ngram_over_the_count_gets_shorter() -> None:
    """With 3 positions, 6/11 * 5/11 + 3/11 of the rows have two n-grams and 2/11 one; a little less at ends of text."""
    candidates, starts = text(4000, 200)
    selected = chosen("ngrams", candidates, starts, 3)
    assert (selected.positions.sum(axis=1) == 3).all()
    grams = (selected.positions & (selected.first == np.arange(200))).sum(axis=1)
    for number, share in ((1, 2 / 11), (2, 3 / 11 + 6 / 11 * 5 / 11), (3, (6 / 11) ** 2)):
        assert abs(z((grams == number).sum(), 4000, share)) < 4.5
    assert abs(z((grams == 1).sum(), 4000, 1 / 3)) > 20  # the power check: lengths alike
    # No n-gram has more than three units; each is one stretch.
    many = chosen("ngrams", candidates[:300], starts[:300], 60)
    assert set(sizes_of(many)) == {1, 2, 3}
    assert (np.arange(200) - many.first)[many.positions].max() == 2


@pytest.mark.parametrize("sizes", [(1,), (3,), (1, 1, 2, 5)])
def test_units_with_draws_of_their_own_have_the_rate_at_any_length(sizes: tuple[int, ...]) -> None:
    candidates, starts = text(2000, 128, sizes)
    selected = chosen("bernoulli", candidates, starts, 128)
    first = np.maximum.accumulate(np.where(starts, np.arange(128), 0), axis=1)
    size = np.bincount((first + np.arange(2000)[:, None] * 128)[candidates], minlength=2000 * 128).reshape(2000, 128)
    for units in {*sizes, size[np.arange(2000), first[:, -2]].max()}:  # at the end they are cut short
        which = starts & (size == units)
        assert abs(z(selected.positions[which].sum(), which.sum(), 0.15)) < 4
    last = first[:, -2]
    assert abs(z(selected.positions[np.arange(2000), last].sum(), 2000, 0.15)) < 4
    spread = selected.positions.sum(axis=1).var() / (0.15 * 0.85 * 126)
    assert spread == pytest.approx(np.mean(np.square(sizes)) / np.mean(sizes), rel=0.15)  # 0 for a fixed count


@pytest.mark.parametrize("length", [32, 128, 512])
def test_random_counts_seldom_exceed_the_space_for_them(length: int) -> None:
    rows = 4000
    config = MaskingConfig(strategy="bernoulli")
    for sizes in ((1,), (2,), (1, 1, 1, 3)):
        candidates, starts = text(rows // 4, length, sizes)
        lost, over = 0, 0
        for seed in range(4):
            found = chosen("bernoulli", candidates, starts, length, seed).positions.sum(axis=1)
            lost += np.maximum(found - config.predictions(length), 0).sum()
            over += (found > 0.15 * length).sum()
        assert lost / (0.15 * length * rows) < 1e-4
        assert over > 0.3 * rows  # the power check: the mean alone would not do
    assert config.predictions(length) < 0.15 * length + 6 * np.sqrt(2 * 0.15 * 0.85 * length) + 7  # and not all


def test_more_than_there_is_space_for_is_left_out_by_units() -> None:
    candidates, starts = text(500, 64, (1, 2, 3))
    every, few = (chosen("bernoulli", candidates, starts, count).positions for count in (64, 6))
    assert not (few & ~every).any()
    np.testing.assert_array_equal(few[every.sum(axis=1) <= 6], every[every.sum(axis=1) <= 6])
    left = few.sum(axis=1)[every.sum(axis=1) > 6]
    assert len(left) > 200
    assert left.max() == 6
    assert left.min() >= 4
