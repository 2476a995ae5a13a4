"""XLNet's choice of what is predicted: n-grams in contexts, whole words, an exact goal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.rows import random
from bert_jax.rows.strategies import ngrams
from bert_jax.rows.strategies.ngrams_in_context import Config, select
from tests.rows.fakes import chi_square_z
from tests.rows.test_strategies import text

OPTIONS = Config()


def keys(count: int) -> random.Bits:
    return random.fold(random.key("contexts"), np.arange(count))


def walk_one_by_one(units: int, key: Any, options: Config = OPTIONS) -> Iterator[tuple[int, int]]:
    """The published walk, an n-gram after the other: pairs of the first unit and the unit after the last."""
    here, step = 0, 0
    while True:
        n = int(ngrams.Config(longest=options.longest).lengths(random.fold(key, 2 * step))[0])
        left = int(random.integers(random.fold(key, 2 * step + 1), options.context * n)[0])
        begin, end = here + left, here + left + n
        if end > units:
            return
        yield begin, end
        here, step = end + options.context * n - left, step + 1


@pytest.mark.parametrize("options", [OPTIONS, Config(longest=3, context=2)])
def test_the_walk_is_the_walk_that_goes_one_by_one(options: Config) -> None:
    """With a goal of 1 the walk is cut; where it has more than the goal, nothing else is selected."""
    candidates, starts = text(80, 90, (1, 1, 2, 3), special=(40,))
    every = select(candidates, starts, np.full(80, 3), keys(80), options).positions
    unit = np.cumsum(starts, axis=1) - 1
    cut = 0
    for row in range(80):
        walked = walk_one_by_one(int(starts[row].sum()), keys(80)[row], options)
        inside = [u for begin, end in walked for u in range(begin, end)]
        wanted, left = set[int](), 3
        for u in inside:
            places = set(np.flatnonzero((unit[row] == u) & candidates[row]).tolist())
            if len(places) > left:
                break
            wanted, left = wanted | places, left - len(places)
        cut += left == 0
        assert wanted <= set(np.flatnonzero(every[row]).tolist())
        if left == 0:
            assert wanted == set(np.flatnonzero(every[row]).tolist())
    assert cut > 20


def test_shares_are_those_of_the_published_code() -> None:
    """Of 256 pieces that all begin a word, 14.2 % without a goal, and 6.6 of 43 are filled in (measured there)."""
    candidates, starts = text(4000, 258)
    count = np.full(4000, 43)
    selected = select(candidates, starts, count, keys(4000), OPTIONS)
    assert (selected.positions.sum(axis=1) == 43).all()
    walked = np.array([sum(e - b for b, e in walk_one_by_one(256, key)) for key in keys(400)])
    assert walked.mean() / 256 == pytest.approx(0.142, abs=0.003)
    assert (43 - np.minimum(walked, 43)).mean() == pytest.approx(6.6, abs=0.6)
    eighths = selected.positions[:, 1:-1].reshape(4000, 8, 32).mean(axis=(0, 2))
    np.testing.assert_allclose(eighths, 43 / 256, rtol=0.06)  # no part of the row is left out
    whole = text(2000, 258, (1, 1, 2, 5))
    many = select(*whole, np.full(2000, 43), keys(2000), OPTIONS).positions[:, 1:-1].mean(axis=0)
    assert many[-32:].mean() > 0.75 * many[:32].mean()  # nor with words of several pieces


def test_an_ngram_lies_anywhere_in_its_context() -> None:
    """The n of an n-gram has shares proportional to 1 / n, and the units before the first are uniform in K n."""
    first = [next(walk_one_by_one(60, key)) for key in keys(10_000)]
    begins, lengths = np.array([b for b, _ in first]), np.array([e - b for b, e in first])
    shares = 1 / np.arange(1, 6)
    histogram = np.bincount(lengths, minlength=6)[1:]
    assert abs(chi_square_z(histogram, 10_000 * shares / shares.sum())) < 5
    assert chi_square_z(histogram, np.full(5, 2000.0)) > 100  # the power check
    for n in (1, 5):
        places = np.bincount(begins[lengths == n], minlength=6 * n)
        assert len(places) == 6 * n
        assert abs(chi_square_z(places, np.full(6 * n, places.sum() / (6 * n)))) < 5


@pytest.mark.parametrize("options", [{"longest": 0}, {"context": 0}])
def test_bad_options_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(UserError, match="1 to 100 is allowed"):
        Config(**options)
