"""The table against scipy, and what it says of too few seeds."""

import numpy as np
import pytest
from scipy import stats

from bert_jax.experiments import table

SCORES = {
    "bert": [0.80, 0.82, 0.81],
    "no_nsp": [0.80, 0.83, 0.80],
    "ltr": [0.70, 0.75, 0.71, 0.72],
}


def test_means_spreads_and_errors_are_those_of_scipy() -> None:
    first, *others = table.compare(SCORES)
    assert (first.difference, first.standard_error, first.shown) == (None, None, None)
    for row in (first, *others):
        assert row.mean == pytest.approx(np.mean(SCORES[row.variant]))
        assert row.spread == pytest.approx(np.std(SCORES[row.variant], ddof=1))
        assert row.seeds == len(SCORES[row.variant])
    for row in others:
        welch = stats.ttest_ind(SCORES[row.variant], SCORES["bert"], equal_var=False)
        assert row.difference is not None
        assert row.standard_error is not None
        assert row.difference / row.standard_error == pytest.approx(welch.statistic)


def test_two_standard_errors_part_what_is_shown_from_what_is_not() -> None:
    assert [row.shown for row in table.compare(SCORES)] == [None, False, True]
    # Spreads of 1 over 2 seeds each make an error of 1: exactly two of it are not shown, a little more is.
    spread = 0.5**0.5
    for difference, shown in ((2.0, False), (2.001, True), (-2.001, True)):
        scores = {"a": [-spread, spread], "b": [difference - spread, difference + spread]}
        row = table.compare(scores)[1]
        assert row.standard_error == pytest.approx(1.0)
        assert table.VariantSummary("b", 2, difference, 1.0, difference, 1.0).shown is shown
        if difference != 2.0:
            assert row.shown is shown


def test_chance_alone_is_seldom_shown() -> None:
    """With five seeds, Student's t (about 8 degrees of freedom) shows 8 in 100 variants that do not differ."""
    draws = np.random.default_rng(0).normal(size=(2000, 2, 5))
    shown = sum(bool(table.compare({"a": a, "b": b})[1].shown) for a, b in draws.tolist())
    assert 0.04 < shown / 2000 < 0.12


def test_one_seed_shows_nothing() -> None:
    first, second = table.compare({"a": [1.0], "b": [9.0]})
    assert (first.spread, second.difference, second.standard_error, second.shown) == (None, 8.0, None, False)


def test_variants_without_a_metric_are_left_out_of_its_table() -> None:
    runs = {"bert": [{"mlm": 1.0, "nsp": 0.9}, {"mlm": 2.0, "nsp": 0.8}], "ltr": [{"lm": 3.0}, {"lm": 4.0}]}
    assert table.by_metric(runs) == {
        "mlm": {"bert": [1.0, 2.0]},
        "nsp": {"bert": [0.9, 0.8]},
        "lm": {"ltr": [3.0, 4.0]},
    }


def test_the_page_has_a_table_for_each_metric() -> None:
    rows = table.compare(SCORES)
    text = table.markdown({"accuracy": rows}, "three")
    assert text.startswith("# three\n")
    assert "| no_nsp | 3 | 0.8100 | 0.0173 | +0.0000 | 0.0115 | not shown |" in text
    assert "| ltr | 4 | 0.7200 | 0.0216 | -0.0900 | 0.0122 | shown |" in text
    widths = {line.count("|") for line in text.splitlines() if line.startswith("|")}
    assert widths == {len(table.HEAD) + 1}
    assert table.as_data({"accuracy": rows})["accuracy"][2]["shown"] is True
