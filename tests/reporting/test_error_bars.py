"""Values with error bars: what is drawn stands where the axes say, and text stays text."""

import re

import numpy as np
import pytest

from bert_jax.reporting import error_bars
from bert_jax.reporting.error_bars import Figure, Mark

NUMBER = r"[-+]?[0-9.]+(?:e[-+]?[0-9]+)?"


def bars(*marks, **options):
    return Figure("loss", "loss, lower is better", {"": marks}, **options)


def test_bars_and_their_error_bars_stand_where_the_axis_says():
    drawing = error_bars.section([bars(Mark("a", 1.0, 0.1, look="reference"), Mark("b", 3.0, 0.2))], "")
    ticks = re.findall(rf'<text x="({NUMBER})" y="{NUMBER}" text-anchor="middle">({NUMBER})</text>', drawing)
    (x0, v0), (x1, v1) = [(float(x), float(value)) for x, value in (ticks[0], ticks[-1])]
    pixels = (x1 - x0) / (v1 - v0)
    ends = [
        float(x) for pair in re.findall(rf'class="error" d="M({NUMBER}) {NUMBER}H({NUMBER})', drawing) for x in pair
    ]
    assert [v0 + (x - x0) / pixels for x in ends] == pytest.approx([0.9, 1.1, 2.8, 3.2], abs=0.01)
    tops = re.findall(rf'class="bar" x="({NUMBER})" y="{NUMBER}" width="({NUMBER})"', drawing)
    assert [v0 + (float(x) + float(width) - x0) / pixels for x, width in tops] == pytest.approx([1, 3], abs=0.01)
    assert "a 1.0000 ± 0.1000; b 3.0000 ± 0.2000" in drawing, "the label of the whole"
    assert "1.0000 · reference" in drawing
    assert "does not begin at 0" not in drawing
    assert "the axis does not begin at 0" in error_bars.section([bars(Mark("a", 2.0, 0.1), Mark("b", 2.1, 0.1))], "")
    assert (
        "reference" not in error_bars.section([bars(Mark("a", 2.0, None, look="reference"))], "").partition("</g>")[2]
    )


def test_many_long_names_fit():
    names = [f"variant_{i}_of_a_model_with_a_very_long_name_{'and_more_' * i}" for i in range(13)]
    picture = error_bars.picture("title", [bars(*(Mark(name, 2.0 + i, 0.1) for i, name in enumerate(names)))], "note")
    ends = []
    for elements, name in zip(re.findall(r'<g class=""><title>.*?</g>', picture), names, strict=True):
        lines = re.findall(rf'class="name" x="8" y="({NUMBER})">(.*?)<', elements)
        assert "".join(line for _, line in lines) == name
        said = re.search(r'class="word".*?>(.*?)<', elements)[1]
        assert max(len(line) for _, line in lines) + len(said) < 546 / error_bars._CHARACTER
        ends += [float(y) for y, _ in lines]
    assert min(np.diff(ends)) >= error_bars._LINE, "no line of text lies on another"


def test_a_logarithmic_axis_and_the_lengths_of_its_error_bars():
    values = {0.01: (0.5, 0.02), 0.1: (0.6, 0.04), 1: (0.9, 0.01)}
    curve = [Mark("fresh", value, error, x) for x, (value, error) in values.items()]
    drawing = error_bars.section([Figure("accuracy", "accuracy", {"fresh": curve}, "fraction")], "")
    xs = [float(x) for x in re.findall(rf'cx="({NUMBER})"', drawing)]
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1], abs=0.11), "0.01, 0.1 and 1 lie evenly"
    labels = dict(re.findall(rf'class="tick" x="({NUMBER})" y="260" text-anchor="\w+">({NUMBER})<', drawing))
    assert {value: float(x) for x, value in labels.items()} == dict(zip(("0.01", "0.1", "1"), xs, strict=True))
    grid = re.findall(rf'class="tick" x="46" y="({NUMBER})" text-anchor="end">({NUMBER})<', drawing)
    (y0, v0), (y1, v1) = [(float(y), float(value)) for y, value in (grid[0], grid[-1])]
    ends = re.findall(rf'd="M{NUMBER} ({NUMBER})V({NUMBER})', drawing)
    lengths = [abs(float(top) - float(bottom)) / abs((y1 - y0) / (v1 - v0)) for top, bottom in ends]
    assert lengths == pytest.approx([2 * error for _, error in values.values()], abs=0.002)


@pytest.mark.parametrize(
    ("xs", "log"),
    [
        ([0.01, 0.1, 1], True),
        ([1, 3, 10, 30, 100], True),
        ([1e-5, 3e-5, 1e-4], True),
        ([0.1, 1], False),
        ([0, 1, 100], False),
        ([10, 20, 30, 40, 60], False),
        (range(100, 1100, 100), False),
    ],
)
def test_a_logarithmic_axis_is_for_places_that_span_a_power_of_ten(xs, log):
    assert error_bars._is_log(list(xs)) == log


def test_a_baseline_far_off_is_not_drawn():
    chart = bars(Mark("a", 2.05, 0.1), Mark("b", 2.25, 0.1), baselines={"near": 2.4, "far": 9.0})
    assert [name for name, _ in chart.lines] == ["near"]


def test_hostile_names_stay_text():
    odd = "<script>&\"'_1"
    chart = Figure(odd, odd, {odd: [Mark(odd, 1.0, 0.1, x, word=odd, facts=(odd,)) for x in (1.0, 2.0)]}, odd, (odd,))
    for text in (error_bars.section([chart], ""), error_bars.picture(odd, [chart, bars(Mark(odd, 1.0, None))], odd)):
        assert "<script" not in text
        assert "&lt;script&gt;" in text
