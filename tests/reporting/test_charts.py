"""Charts tell the truth: round ticks inside the range, no spike lost by thinning, text escaped."""

import math
import re

import pytest

from bert_jax.reporting import charts
from bert_jax.reporting.charts import Chart, Series, chart_svg
from bert_jax.reporting.curves import Curves
from bert_jax.reporting.measures import drawn_metrics, metric_title


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 10, [0, 2, 4, 6, 8, 10]),
        (0.31, 0.82, [0.4, 0.5, 0.6, 0.7, 0.8]),
        (0, 1e-3, [0, 2e-4, 4e-4, 6e-4, 8e-4, 1e-3]),
        (0, 1_000_000, [0, 200_000, 400_000, 600_000, 800_000, 1_000_000]),
        (-1.2, 1.1, [-1.0, -0.5, 0.0, 0.5, 1.0]),
        (3, 3, [3]),
    ],
)
def test_ticks_are_round_and_within(low, high, expected):
    assert charts.ticks(low, high) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("scale", [1e-9, 1e-4, 1.0, 37.0, 1e6])
def test_ticks_are_evenly_spaced_and_few_at_any_scale(scale):
    for high in (1.0, 1.7, 2.3, 4.4, 6.1, 9.9):
        found = charts.ticks(0.13 * scale, high * scale)
        assert 3 <= len(found) <= 7
        assert 0.13 * scale <= found[0]
        assert found[-1] <= high * scale * (1 + 1e-9)
        gaps = [b - a for a, b in zip(found, found[1:], strict=False)]
        assert gaps == pytest.approx([gaps[0]] * len(gaps))
        mantissa = gaps[0] / 10 ** math.floor(math.log10(gaps[0]) + 1e-9)
        assert min(abs(mantissa - m) for m in (1, 2, 2.5, 5)) < 1e-6


def test_tick_labels():
    labels = {0: "0", 1000: "1.00k", 20_000: "20.0k", 2.5e-4: "0.00025", 5e-5: "5e-05", 0.25: "0.25"}
    assert {value: charts.tick_label(value) for value in labels} == labels


def test_thinning_keeps_ends_order_and_every_extreme():
    points = [(float(i), math.sin(i / 900)) for i in range(100_000)]
    points[31_415] = (31_415.0, 50.0)
    points[77_777] = (77_777.0, -50.0)
    points[50_000] = (50_000.0, None)
    kept = charts._thin(points)
    assert len(kept) <= charts._MAX_POINTS
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    assert {(31_415.0, 50.0), (77_777.0, -50.0)} <= set(kept)
    assert [x for x, _ in kept] == sorted({x for x, _ in kept})
    assert charts._thin(points[: charts._MAX_POINTS]) == points[: charts._MAX_POINTS]


def test_smoothing_keeps_a_constant_and_quiets_noise():
    assert charts._smooth([(float(i), 3.0) for i in range(200)]) == [(float(i), 3.0) for i in range(200)]
    noisy = charts._smooth([(float(i), float(i % 2)) for i in range(600)])
    assert max(abs(y - 0.5) for _, y in noisy) < 0.1


def chart(points, **options):
    return chart_svg(Chart("loss", (Series("train", points, "train"),), **options))


def test_values_are_placed_where_the_axes_say():
    drawing = chart([(0.0, 0.0), (10.0, 5.0), (20.0, 10.0)])
    [path] = re.findall(r'<path class="curve train" d="([^"]+)"/>', drawing)
    x0, y0, x1, y1, x2, y2 = map(float, re.findall(r"[\d.]+", path))
    assert x1 == pytest.approx((x0 + x2) / 2, abs=0.1)
    assert y1 == pytest.approx((y0 + y2) / 2, abs=0.1)
    assert x0 < x2
    assert y0 > y2  # up is more
    grid = dict(re.findall(r'y="([\d.]+)" text-anchor="end">(\d+)</text>', drawing))
    assert {label: float(y) - 4 for y, label in grid.items()}["10"] == pytest.approx(y2, abs=0.11)


def test_an_unknown_value_breaks_the_curve():
    points = [(0.0, 1.0), (1.0, 2.0), (2.0, None), (3.0, math.nan), (4.0, 1.0), (5.0, 2.0)]
    assert re.search(r'd="M[^M]+M[^M]+"', chart(points))


def test_references_marks_and_titles_are_there_and_escaped():
    drawing = chart([(0.0, 1.0), (9.0, 2.0)], references=(("<b>", 6.02),), marks=(("<i>&", 4.0),))
    assert "&lt;b&gt; 6.020" in drawing
    assert "&lt;i&gt;&amp; at step 4" in drawing
    assert "<title>step 9\ntrain 2.000</title>" in drawing
    assert "<b>" not in drawing
    assert "<i>" not in drawing


@pytest.mark.parametrize("points", [[], [(0.0, None)], [(0.0, math.nan)]])
def test_nothing_to_draw_is_nothing(points):
    assert chart(points) == ""


ODD = [[(5.0, 1.0)], [(0.0, 0.0), (1.0, 0.0)], [(0.0, -1.0), (1.0, 1e30)], [(0.0, 0.0), (1.0, 5.0)]]


@pytest.mark.parametrize("points", ODD)
def test_odd_data_still_draws_finite_numbers(points):
    drawing = chart(points)
    assert drawing.startswith("<svg")
    assert "nan" not in drawing
    assert "inf" not in drawing


def test_figures_of_parts_come_in_the_order_of_the_log_without_their_perplexity():
    names = [
        f"{name}/{part}" for part in ("new", "old", "legal") for name in ("mlm_loss", "mlm_accuracy", "perplexity")
    ]
    record = {"step": 1, "split": "eval", "time": 0.0, **dict.fromkeys([*names, "perplexity", "mlm_loss"], 1.0)}
    assert drawn_metrics([record], {"mlm_loss": "Masked-LM loss"}) == [
        "mlm_loss",
        *(name for name in names if "perplexity" not in name),
    ]


def test_titles_order_the_charts_and_an_empty_one_leaves_a_metric_out():
    titles = {"words_loss": "Words, nats", "count": "", "pairs/accuracy": "pairs: right", "loss": "Loss"}
    names = ["accuracy", "count", "count/dev", "loss", "pairs/accuracy", "words_loss/legal", "words_loss"]
    record = {"step": 1, "split": "eval", "time": 0.0, **dict.fromkeys(names, 1.0)}
    drawn = ["words_loss", "pairs/accuracy", "loss", "accuracy", "words_loss/legal"]
    assert drawn_metrics([record], titles) == drawn
    shown = ["Words, nats", "pairs: right", "Loss", "accuracy", "Words, nats: legal"]
    assert [metric_title(name, titles) for name in drawn] == shown


def test_hostile_text_stays_text_in_a_notebook():
    odd = """<script>alert("x")</script>'&"""
    drawn = Curves("x", (Chart(odd, (Series(odd, [(0, 1.0), (1, 2.0)], "eval"),), ((odd, 1.0),), ((odd, 0.5),)),))
    page = drawn._repr_svg_()
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_the_rules_of_a_notebook_are_for_its_picture_alone_and_need_no_variables():
    page = Curves("x", (Chart("loss", (Series("train", [(0, 1.0), (1, 2.0)], "train"),)),))._repr_svg_()
    style = re.search("<style>(.*?)</style>", page, re.DOTALL)[1]
    selectors = [one.strip() for group in re.findall(r"([^{}]+){", style) for one in group.split(",")]
    assert all(selector.startswith(".bert-jax") for selector in selectors)
    assert ".bert-jax .train { stroke: #2f6fd6; }" in style
    assert "var(" not in page
