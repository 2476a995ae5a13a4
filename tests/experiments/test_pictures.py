"""The pictures of tables: what is drawn stands where the axes say and is what table.json has, and doubt is said."""

import html
import itertools
import json
import math
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from bert_jax.cli.main import run
from bert_jax.errors import UserError
from bert_jax.experiments import pictures
from bert_jax.experiments.ablation_table import Results, cell_name, write_tables
from bert_jax.experiments.compare import compare
from bert_jax.experiments.nouns import SAME_ROWS, MetricColumn
from bert_jax.experiments.pictures import over_numbers
from bert_jax.experiments.sweep import Outcome, Sweep, _over, _write
from bert_jax.parts.own_code import at
from tests import toy
from tests.tasks import toy_tasks

NUMBER = r"[-+]?[0-9.]+(?:e[-+]?[0-9]+)?"


class Measured(SimpleNamespace):
    """A variant whose own metrics measure what ``what`` says."""

    def measures(self, metric):
        return "the same" if metric in SAME_ROWS else self.what


def ablation(folder, spec, tasks=("sst2",), key="", configs=None, what=None):
    """Write the tables of {variant: {metric: scores}}; return the folder's table.json and the text of its picture."""
    metrics = {}
    for variant, scores in spec.items():
        seeds = range(len(next(iter(scores.values()))))
        for seed, task in itertools.product(seeds, ("", *tasks)):
            name, start = cell_name(variant, seed, task), f"{task}/" if task else ""
            found = {metric: values[seed] for metric, values in scores.items() if metric.rpartition("/")[0] == task}
            metrics[name] = {metric.removeprefix(start): value for metric, value in found.items()}
            (folder / name).mkdir()
            (folder / name / "baselines.json").write_text('{"majority_rate": 0.5, "unigram_cross_entropy": 3.0}')
    rows = SimpleNamespace(deciding="rows", experiment=SimpleNamespace(seed=0))
    variants = {name: Measured(rows=rows, what=(what or {}).get(name, "x")) for name in spec}
    measured = [metric.partition("/") for scores in spec.values() for metric in scores]
    main = {task: next((name for of, _, name in measured if of == task), "") for task in tasks}
    results = Results(str(folder), tuple(spec), tuple(seeds), metrics, variants, main)
    over = over_numbers(key, {name: at(config, key) for name, config in configs.items()}) if key else None
    write_tables(results, "bert-jax ablate", over)
    return json.loads((folder / "table.json").read_text()), (folder / "picture.svg").read_text()


def sweep(folder, vary, score, seeds=3, over=""):
    every = [dict(zip(vary, values, strict=True)) for values in itertools.product(*vary.values())]
    outcomes = [Outcome(values, tuple(score(values, seed) for seed in range(seeds))) for values in every]
    request = Sweep("glue:sst2", (), vary, tuple(range(seeds)), str(folder), over=over)
    config = {"phases": {"train": {}}}
    combinations = {one.name: SimpleNamespace(values=one.values, config=config) for one in outcomes}
    _write(request, outcomes, outcomes, "accuracy", _over(request, combinations))
    return json.loads((folder / "table.json").read_text()), (folder / "picture.svg").read_text()


def check_alone(folder):
    """Assert that page and picture are well-formed, run nothing and read nothing from elsewhere."""
    picture, page = (folder / "picture.svg").read_text(), (folder / "report.html").read_text()
    ElementTree.fromstring(picture)
    ElementTree.fromstring(re.sub(r"<(meta[^>]*|br)>", r"<\1/>", page.partition("\n")[2]))
    for text in (picture, page):
        assert not re.search(r"<script|<image|<use|@import|url\(|\son\w+=|href=|src=", text)
        assert re.sub(r'xmlns="http://www.w3.org/2000/svg"', "", text).count("http") == text.count("http-equiv")
        assert "nan" not in re.sub(r"<text.*?</text>|<title>.*?</title>", "", text)
    assert drawn(picture) == drawn(page)


def drawn(text):
    return re.findall(r'<g role="img".*?\n</g>', text, re.DOTALL)


def points(text):
    """What each mark of a drawing has: its class, its title, its elements."""
    return re.findall(r'<g class="(?:point ?)?(\w*)"><title>(.*?)</title>(.*?)</g>', text)


SPEC = {
    "bert": {"mlm_loss": [2.0, 2.1, 2.2], "sst2/accuracy": [0.80, 0.82, 0.81]},
    "no_nsp": {"mlm_loss": [2.1, 2.1, 2.0], "sst2/accuracy": [0.80, 0.83, 0.80]},
    "ltr": {"sst2/accuracy": [0.70, 0.71, 0.72]},
}


def test_bars_say_what_the_table_has_and_where_nothing_is_shown(tmp_path):
    written, picture = ablation(tmp_path, SPEC)
    check_alone(tmp_path)
    loss, accuracy = map(points, drawn(picture))
    assert len(loss) == 2, "ltr has no such metric"
    assert [kind for kind, *_ in accuracy] == ["reference", "doubt", ""]
    for (_, title, elements), row in zip(accuracy, written["metrics"]["sst2/accuracy"], strict=True):
        scores = SPEC[row["variant"]]["sst2/accuracy"]
        bar = 2 * np.std(scores, ddof=1) / math.sqrt(3)
        assert row["bar"] == pytest.approx(bar)
        assert title.startswith(f"{row['variant']}: {row['mean']:.4f} ± {row['bar']:.4f}, 3 seeds")
        assert ("not shown" in title) == ("not shown" in elements) == (row["shown"] is False)
        assert f"{row['variant']} {row['mean']:.4f} ± {row['bar']:.4f}" in picture, "the label of the whole"
    assert "no_nsp 0.8100 ± 0.0200 (not shown: the bars overlap)" in picture
    assert "sst2/accuracy, higher is better (the axis does not begin at 0)" in picture
    assert "mlm_loss, lower is better" in picture
    assert "majority rate 0.500" in picture


def test_another_measure_is_neither_shown_nor_not(tmp_path):
    spec = {name: {"own_mlm_loss": [1.0 + i, 1.1 + i]} for i, name in enumerate(("bert", "no_nsp", "ltr"))}
    written, picture = ablation(tmp_path, spec, (), what={"ltr": "y", "bert": "x", "no_nsp": "x"})
    assert [kind for kind, *_ in points(picture)] == ["reference", "", "other"]
    assert "ltr 3.0500 ± 0.1000 (another measure)" in picture
    assert "not shown:" not in picture
    assert [row["shown"] for row in written["metrics"]["own_mlm_loss"]] == [None, True, None]


def test_one_seed_has_no_bars_and_says_so(tmp_path):
    _, picture = ablation(tmp_path, {"bert": {"mlm_loss": [2.0]}, "no_nsp": {"mlm_loss": [2.2]}}, ())
    check_alone(tmp_path)
    assert 'class="error"' not in picture
    assert [kind for kind, *_ in points(picture)] == ["reference", "doubt"]
    assert "not shown:" not in picture
    assert re.findall(r'class="word".*?>(.*?)<', picture) == ["2.0000 · reference", "2.2000"]
    for text in (picture, (tmp_path / "report.html").read_text()):
        assert "One seed: there are no error bars" in text


def rates(variants):
    return {name: {"objective": {"masking": {"rate": int(name.rpartition("_")[2]) / 100}}} for name in variants}


def test_alike_variants_are_curves_compared_at_equal_places(tmp_path):
    names = ["rate_10", "rate_20", "rate_40", "all_rate_10", "all_rate_20", "all_rate_60"]
    rng = np.random.default_rng(0)
    means = dict(zip(names, (2.0, 2.0, 3.0, 2.0, 2.5, 3.0), strict=True))
    spec = {name: {"mlm_loss": rng.normal(mean, 0.01, 3).tolist()} for name, mean in means.items()}
    written, picture = ablation(tmp_path, spec, (), "objective.masking.rate", rates(names))
    check_alone(tmp_path)
    rows = {row["variant"]: row for row in written["metrics"]["mlm_loss"]}
    beside = {"rate_20": "rate_10", "rate_40": "rate_10", "all_rate_10": "rate_10", "all_rate_20": "rate_20"}
    assert {name: rows[name]["reference"] for name in beside} == beside
    assert rows["all_rate_60"]["reference"] == "rate_10", "no rate_60"
    assert "| mlm_loss | all_rate_20 - rate_20 |" in (tmp_path / "table.md").read_text()
    said = (tmp_path / "report.html").read_text()
    assert "all_rate: not shown to differ from rate at 0.1: the bars overlap." in said
    assert ">rate: not shown to differ from rate_10 at 0.2: the bars overlap." in said
    assert written["over"] == {"objective.masking.rate": {name: int(name[-2:]) / 100 for name in names}}
    titles = [title for _, title, _ in points(picture)]
    assert titles[4].startswith(f"all_rate at objective.masking.rate 0.2: {rows['all_rate_20']['mean']:.4f} ± ")
    assert picture.count('class="curve "') == 2
    assert "var(--train)" in drawn(picture)[0]
    assert "var(--eval)" in drawn(picture)[0]


def test_curves_of_a_sweep_say_what_the_table_has(tmp_path):
    vary = {"data.train_fraction": ("0.01", "0.1", "1"), "weights": ("pretrained", "fresh")}
    rng = np.random.default_rng(0)

    def score(values, _):
        return 0.5 + rng.normal(0.2 * float(values["data.train_fraction"]) + 0.1 * (values["weights"] == "fresh"), 0.02)

    written, picture = sweep(tmp_path, vary, score, over="data.train_fraction")
    check_alone(tmp_path)
    marks = points(picture)
    for outcome, (_, title, _) in zip(written["outcomes"][::2] + written["outcomes"][1::2], marks, strict=True):
        bar = 2 * np.std(outcome["scores"], ddof=1) / math.sqrt(3)
        assert f"{np.mean(outcome['scores']):.4f} ± {bar:.4f}, 3 seeds" in title
    told = [row["shown"] for rows in written["compared"].values() for row in rows]
    assert [shown is False for shown in told[1::2]] == [kind == "doubt" for kind, *_ in marks[3:]]


def test_steps_are_one_chart_and_columns_without_a_step_are_bars(tmp_path):
    rng = np.random.default_rng(0)
    spec = {
        name: {"mlm_loss": rng.normal(2, 0.1, 3)}
        | {f"sst2@{step}/accuracy": rng.normal(0.6 + step / 4000, 0.01, 3) for step in (100, 400, 1000)}
        for name in ("mlm", "ltr")
    }
    spec["ltr"].pop("sst2@400/accuracy")
    written, picture = ablation(tmp_path, spec, [f"sst2@{step}" for step in (100, 400, 1000)])
    check_alone(tmp_path)
    loss, steps = drawn(picture)
    assert "mlm_loss, lower is better" in loss
    assert [title.partition(":")[0] for _, title, _ in points(steps)] == [
        "mlm at step 100",
        "mlm at step 400",
        "mlm at step 1,000",
        "ltr at step 100",
        "ltr at step 1,000",
    ]
    assert "Accuracy of sst2's best evaluation after fine-tuning with it." in html.unescape(picture)
    assert written["without_learning"]["sst2@400/accuracy"] == "majority rate 0.500"


def test_bars_of_a_sweep_are_one_chart_for_each_of_the_other_values(tmp_path):
    vary = {"data.train_fraction": ("0.1", "1"), "weights": ("pretrained", "fresh")}
    written, picture = sweep(tmp_path, vary, lambda values, seed: 0.5 + seed / 100, seeds=2)
    check_alone(tmp_path)
    assert "accuracy at train_fraction=0.1" in picture
    assert [kind for kind, *_ in points(picture)] == ["reference", "doubt"] * 2
    assert list(written["compared"]) == ["train_fraction=0.1", "train_fraction=1"]


def test_three_numbers_of_the_last_key_are_a_curve_unasked(tmp_path):
    vary = {"weights": ("pretrained", "fresh"), "data.train_fraction": ("0.1", "0.2", "0.3")}
    _, picture = sweep(tmp_path, vary, lambda values, seed: float(values["data.train_fraction"]) + seed / 9)
    assert picture.count('class="curve "') == 2
    said = "weights=fresh: not shown to differ from weights=pretrained at 0.1, 0.2, 0.3: the bars overlap."
    assert said in (tmp_path / "report.html").read_text()
    assert "| train_fraction=0.1 | weights=fresh - weights=pretrained |" in (tmp_path / "table.md").read_text()


def test_baselines_are_said_under_a_figure():
    rows = compare({"a": [2.0, 2.1], "b": [2.2, 2.3]})
    column = MetricColumn("the loss", "lower is better", {}, {"near": 2.4, "far": 9.0})
    chart = pictures.figure_of("loss", column.better, {"": [(0.0, row) for row in rows]}, column=column)
    assert chart.sentences == ("The loss.", "Without learning: near 2.400, far 9.000.")


def test_a_value_that_is_no_number_is_named(tmp_path, capsys):
    with pytest.raises(UserError, match="--over=model.size needs a number in every variant, and b has 'tiny'; set one"):
        over_numbers("model.size", {"a": 3, "b": "tiny"})
    with pytest.raises(UserError, match="and b does not set it"):
        over_numbers("seed", {"a": 1, "b": None})
    toy_tasks.write_toy(tmp_path, "classification", train=16, dev=8)
    flags = [f"--config={tmp_path / 'recipe.json'}", f"--data={tmp_path}", f"--workdir={tmp_path / 'runs'}"]
    for vary, over, said in (
        (
            "weights=pretrained,fresh",
            "weights",
            "--over=weights needs a number in every variant, and weights=pretrained",
        ),
        ("epochs=1,2", "learning_rate", "--over=learning_rate is none of the config keys that the table compares: ep"),
        ("init=none,x", "init", "the table compares: there are none; name one of these, or leave --over out"),
    ):
        assert run(["sweep", *flags, f"--vary={vary}", f"--over={over}"]) == 2
        assert said in capsys.readouterr().err
    text = toy.write_text(tmp_path / "text.txt")
    recipe = Path(tmp_path / "own.py")
    recipe.write_text(f"def get_config(variant='a'):\n    return {toy.recipe(text)!r}\n")
    flags = [f"--config={recipe}", "--variants=a_1,a_2", f"--workdir={tmp_path / 'runs'}"]
    for over, said in (
        ("objective.name", "--over=objective.name needs a number in every variant, and a_1 has 'mlm"),
        ("objective.nam", "is a key that no variant sets; did you mean 'objective.name'"),
        ("seed", "--over=seed would put a_1 and a_2 at one place of the curve 'a'"),
    ):
        assert run(["ablate", *flags, f"--over={over}"]) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_names_that_differ_by_a_number_are_one_curve():
    over = pictures.Over("k", {"rate_10": 1, "rate_20": 2, "bert": 1, "rate_20+bilstm": 2, "x_0.5": 5, "x_1": 6})
    assert over.curves == {
        "rate": ["rate_10", "rate_20"],
        "bert": ["bert"],
        "rate_20+bilstm": ["rate_20+bilstm"],
        "x": ["x_0.5", "x_1"],
    }
    assert over.references == {"bert": "rate_10", "rate_20+bilstm": "rate_20"}
    over.check_curves()
    with pytest.raises(UserError, match="would put L4_H128 and L4_H64 at one place of the curve 'L4_H': "):
        pictures.Over("model.num_layers", {"L4_H128": 4, "L2_H128": 2, "L4_H64": 4}).check_curves()


def test_a_place_without_a_point_of_the_first_curve_is_compared_with_the_first_variant(tmp_path):
    names = ["rate_10", "rate_20", "all_rate_20", "all_rate_60"]
    spec = {name: {"mlm_loss": [2.0, 2.1, 2.2]} for name in names}
    ablation(tmp_path, spec, (), "objective.masking.rate", rates(names))
    said = (tmp_path / "report.html").read_text()
    assert "all_rate: not shown to differ from rate at 0.2: the bars overlap." in said
    assert "all_rate: not shown to differ from rate_10 at 0.6: the bars overlap." in said


def test_the_picture_has_the_main_metrics_and_the_page_all(tmp_path):
    spec = {
        name: {metric: [0.5, 0.6] for metric in ("mlm_loss", "mlm_accuracy", "sst2/accuracy", "sst2/loss")}
        for name in ("bert", "ltr")
    }
    _, picture = ablation(tmp_path, spec)
    page = (tmp_path / "report.html").read_text()
    assert [len(re.findall(r'role="img"', text)) for text in (picture, page)] == [2, 4]
    assert "mlm_accuracy" not in picture
