"""The comparison of variants beside scipy, and what it says of few seeds; its tables as text."""

import math

import numpy as np
import pytest
from scipy import stats

from bert_jax.experiments import output
from bert_jax.experiments.compare import compare

SCORES = {
    "bert": [0.80, 0.82, 0.81],
    "no_nsp": [0.80, 0.83, 0.80],
    "ltr": [0.70, 0.75, 0.71, 0.72],
}


def test_means_spreads_and_errors_are_those_of_scipy() -> None:
    first, *others = compare(SCORES)
    assert (first.difference, first.standard_error, first.beyond_noise) == (None, None, None)
    for row in (first, *others):
        assert row.mean == pytest.approx(np.mean(SCORES[row.variant]))
        assert row.spread == pytest.approx(np.std(SCORES[row.variant], ddof=1))
        assert row.seeds == len(SCORES[row.variant])
    for row in others:
        welch = stats.ttest_ind(SCORES[row.variant], SCORES["bert"], equal_var=False)
        assert row.difference is not None
        assert row.standard_error is not None
        assert row.difference / row.standard_error == pytest.approx(welch.statistic)


def test_the_noise_is_students_t_for_the_number_of_seeds() -> None:
    assert [row.beyond_noise for row in compare(SCORES)] == [None, False, True]
    for row in compare(SCORES)[1:]:
        interval = stats.ttest_ind(SCORES[row.variant], SCORES["bert"], equal_var=False).confidence_interval(0.95)
        assert row.noise == pytest.approx((interval.high - interval.low) / 2)
    # Two seeds of the same spread: 2 degrees of freedom, t = 4.303. Spreads of 1 make an error of 1.
    spread = 0.5**0.5
    for difference, beyond in ((4.30, False), (4.31, True), (-4.31, True)):
        row = compare({"a": [-spread, spread], "b": [difference - spread, difference + spread]})[1]
        assert row.standard_error == pytest.approx(1.0)
        assert row.noise == pytest.approx(4.3027, abs=1e-4)
        assert row.beyond_noise is beyond
    assert compare({"a": [1.0, 1.0], "b": [2.0, 2.0]})[1].beyond_noise is True


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_chance_alone_is_seldom_beyond_the_noise(seeds: int) -> None:
    draws = np.random.default_rng(0).normal(size=(2000, 2, seeds))
    beyond = sum(bool(compare({"a": a, "b": b})[1].beyond_noise) for a, b in draws.tolist())
    assert 0.003 < beyond / 2000 < 0.06


def test_one_seed_cannot_tell() -> None:
    first, second = compare({"a": [1.0], "b": [9.0]})
    assert (first.spread, second.difference, second.standard_error, second.beyond_noise) == (None, 8.0, None, None)
    assert second.verdict == "one seed: cannot tell"


def test_what_measures_something_else_is_not_compared() -> None:
    scores = {"a": [1.0, 2.0], "b": [1.0, 2.0], "c": [5.0, 6.0]}
    rows = compare(scores, {"a": "x", "b": "x", "c": "y"})
    assert [row.difference for row in rows] == [None, 0.0, None]
    assert [line[1] for line in output.differences({"loss": rows})[1]] == ["b - a"]


def test_what_is_shown_is_beyond_the_noise_and_its_bars_do_not_overlap() -> None:
    rng, overlapping, noisy = np.random.default_rng(0), 0, 0
    for seeds in (2, 3, 5, 9):
        for difference in rng.uniform(0, 6, 200):
            a, b = rng.normal(0, 1, seeds).tolist(), rng.normal(difference, 2, seeds).tolist()
            row = compare({"a": a, "b": b})[1]
            ends = [(np.mean(x), 2 * np.std(x, ddof=1) / math.sqrt(seeds)) for x in (a, b)]
            apart = abs(ends[0][0] - ends[1][0]) > ends[0][1] + ends[1][1]
            assert row.shown == (row.beyond_noise and apart) == (row.doubt == "")
            assert (row.doubt == "the bars overlap") == (not apart)
            overlapping += bool(row.beyond_noise and not apart)
            noisy += bool(apart and not row.beyond_noise)
            if row.beyond_noise and not apart:
                assert row.verdict == "beyond the noise, but the bars overlap"
    assert overlapping
    assert noisy


def test_one_table_has_every_variant_and_every_metric() -> None:
    tables = {"accuracy": compare(SCORES), "loss": compare({"bert": [1.0]})}
    lines = output.markdown(output.overview(tables, {"accuracy": "majority 0.500"})).splitlines()
    assert lines[0] == "| variant | seeds | accuracy | loss |"
    assert lines[2] == "| bert | 3 | 0.8100 ± 0.0100 | 1.0000 |"
    assert lines[4:] == ["| ltr | 4 | 0.7200 ± 0.0216 |  |", "| without learning |  | majority 0.500 |  |"]
    text = output.markdown(output.differences(tables))
    assert "| accuracy | no_nsp - bert | +0.0000 | 0.0115 | within the noise |" in text
    assert "| accuracy | ltr - bert | -0.0900 | 0.0122 | beyond the noise |" in text
    assert output.as_data(tables)["accuracy"][2]["beyond_noise"] is True
