"""Fine-tuning over a grid: every run is there, the table says what they reached, and nothing is run twice."""

import json

import pytest

from bert_jax.cli.main import run
from bert_jax.errors import UserError
from bert_jax.experiments import sweep as sweeps
from bert_jax.experiments.output import as_markdown
from bert_jax.experiments.sweep import Outcome, Sweep, _best_of, _compare_values, _doubt, _metric
from bert_jax.experiments.sweep import sweep as run_sweep
from bert_jax.recipes.finetuning_settings import FinetuningSettings
from tests.tasks import toy_tasks


def sweep(folder, *flags):
    where = [f"--config={folder / 'recipe.json'}", f"--data={folder}", f"--workdir={folder / 'sweep'}"]
    return run(["sweep", *where, *flags])


@pytest.mark.usefixtures("one_device")
def test_a_grid_that_is_run(tmp_path, capsys):
    toy_tasks.write_toy(tmp_path, "classification", train=32, dev=16)
    flags = ("--vary=learning_rate=1e-6,5e-3", "--vary=phases.train.num_epochs=1", "--seeds=1")
    assert sweep(tmp_path, *flags) == 0
    table = json.loads((tmp_path / "sweep" / "table.json").read_text())
    assert table["metric"] == "accuracy"
    assert len(table["outcomes"]) == 2
    for outcome in table["outcomes"]:
        for seed, score in zip(outcome["seeds"], outcome["scores"], strict=True):
            name = "+".join(f"{key.rpartition('.')[2]}={value}" for key, value in outcome["values"].items())
            results = toy_tasks.results(tmp_path / "sweep", f"{name}-seed{seed}")
            assert score == results["metrics"]["dev"]["accuracy"]
    best = max(table["outcomes"], key=lambda outcome: outcome["scores"])
    assert table["best"]["values"] == best["values"]
    assert "best by the median accuracy: learning_rate=" in capsys.readouterr().out

    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "sweep").glob("*/metrics.jsonl")}
    assert len(kept) == 2
    assert sweep(tmp_path, *flags, "--choose=learning_rate") == 0
    assert kept == {path: path.stat().st_mtime_ns for path in kept}
    table_of = (tmp_path / "sweep" / "table.md").read_text().partition("##")[0]
    rows = [line for line in table_of.splitlines() if line.startswith(("| 1e-6", "| 5e-3"))]
    assert len(rows) == 1, "the better rate"


def test_models_whose_runs_would_have_one_name_are_refused(tmp_path, capsys):
    toy_tasks.write_toy(tmp_path, "classification", train=8, dev=8)
    assert sweep(tmp_path, "--vary=init=runs/a/hugging_face,runs/b/hugging_face") == 2
    assert "several would be init=hugging_face; name folders that end differently" in capsys.readouterr().err
    assert not (tmp_path / "sweep").exists()


@pytest.mark.parametrize(("metrics", "metric"), [("entities", "f1"), ("accuracy", "accuracy")])
def test_the_metric_of_tags_depends_on_the_config(metrics, metric):
    recipe = toy_tasks.recipe("tagging")
    recipe["task"]["metrics"] = metrics
    assert _metric([FinetuningSettings.of(recipe)]) == metric
    with pytest.raises(UserError, match="batch_size = 7 does not divide"):
        _metric([FinetuningSettings.of(toy_tasks.recipe("tagging", phases={"train": {"batch_size": 7}}))])


def test_pretrained_and_fresh_are_compared_at_each_fraction():
    def outcome(fraction, weights, *scores):
        return Outcome({"data.train_fraction": fraction, "weights": weights}, scores)

    outcomes = [
        outcome("0.1", "pretrained", 0.6, 0.8),
        outcome("0.1", "fresh", 0.5, 0.5),
        outcome("1", "pretrained", 0.9, 0.9),
        outcome("1", "fresh", 0.8, 0.8),
    ]
    vary = {"data.train_fraction": ("0.1", "1"), "weights": ("pretrained", "fresh"), "seed": ("1",)}
    text = as_markdown(_compare_values(Sweep("r", (), vary, (0, 1), "w"), outcomes, "accuracy")[0])
    assert (
        "## Compared with weights=pretrained\n\n| variant | seeds | train_fraction=0.1 | train_fraction=1 |\n" in text
    )
    assert "| weights=pretrained | 2 | 0.7000 ± 0.1414 | 0.9000 ± 0.0000 |\n" in text
    assert "| weights=fresh | 2 | 0.5000 ± 0.0000 | 0.8000 ± 0.0000 |\n" in text
    assert "| train_fraction=0.1 | weights=fresh - weights=pretrained | -0.2000 | 0.1000 | within the noise |" in text
    assert "| train_fraction=1 | weights=fresh - weights=pretrained | -0.1000 | 0.0000 | beyond the noise |" in text
    request = Sweep("r", (), vary, (0, 1), "w", choose=("data.train_fraction",))
    one = as_markdown(_compare_values(request, outcomes[2:], "accuracy")[0])
    assert one.startswith("## Compared with weights=pretrained\n\n| metric | variants | difference |")


def test_the_best_value_is_by_the_median_and_of_equals_the_first():
    def outcome(rate, weights, *scores):
        return Outcome({"rate": rate, "weights": weights}, scores)

    outcomes = [
        outcome("1", "a", 0.1, 0.9, 0.2),
        outcome("2", "a", 0.3, 0.3, 0.3),
        outcome("1", "b", 0.5, 0.5, 0.5),
        outcome("2", "b", 0.5, 0.5, 0.5),
    ]
    assert _best_of(outcomes, ["rate"], "accuracy") == [outcomes[1], outcomes[2]]
    assert _best_of(outcomes, ["rate"], "loss") == [outcomes[0], outcomes[2]]
    assert _best_of(outcomes, [], "accuracy") == outcomes


def test_the_best_value_is_doubted_within_the_noise_of_the_seeds():
    best, near, far = (
        Outcome({"rate": name}, scores)
        for name, scores in (("1", (0.5, 0.6, 0.7)), ("2", (0.52,) * 3), ("3", (0.3,) * 3))
    )
    assert _doubt(best, [near, far]) == "; within the noise of the seeds: rate=2"
    assert _doubt(best, [far]) == ""
    assert "--seeds=0,1,2" in _doubt(Outcome({"rate": "1"}, (0.5,)), [far])


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--vary=schedule.peak_lerning_rate=1,2", "learning_rate"),
        ("--vary=epochs=1,many", "many"),
        ("--vary=epochs", "KEY=V1,V2"),
        ("--vary=epochs=1,1", "each once"),
        ("--choose=seed", "what varies"),
        ("--seeds=a", "whole numbers"),
        ("--data=nowhere", "no file for dev"),
        ("--vary=epochs=1,1.0", "each once"),
        ("--vary=epochs=1,,2", "at least one value, each once"),
        ("--vary=seed=1,2", "seeds are given by --seeds"),
        ("--vary=data.train_fraction=0.05,1", "train_fraction=0.05: config.data.train_fraction=0.05 keeps 1 of 16"),
        ("--vary=data.train_fraction=0.05,1", "and none of them has the label "),
        ("--vary=init=none,nowhere", "init=nowhere: --init=nowhere"),
    ],
)
def test_slips_are_found_before_a_run(tmp_path, capsys, flag, said):
    toy_tasks.write_toy(tmp_path, "classification", train=16, dev=8)
    assert sweep(tmp_path, flag) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "sweep").exists()


def test_the_argument_of_a_recipe_can_vary(tmp_path, capsys):
    toy_tasks.write_toy(tmp_path, "classification", train=16, dev=8)
    code = "import json, pathlib\ndef get_config(size='a'):\n    own = json.loads(pathlib.Path({!r}).read_text())\n"
    code += "    own['phases']['train']['batch_size'] = {{'a': 8, 'b': 16}}[size]\n    return own\n"
    (tmp_path / "own.py").write_text(code.format(str(tmp_path / "recipe.json")))
    request = Sweep(str(tmp_path / "own.py"), (), {"variant": ("a", "b")}, (0,), str(tmp_path / "sweep"), str(tmp_path))
    sizes = [
        sweeps._load(request, values).config["phases"]["train"] for values in sweeps._combinations(request).values()
    ]
    assert [size["batch_size"] for size in sizes] == [8, 16]
    where = [f"--config={tmp_path / 'own.py'}:a", "--vary=variant=a,b", f"--workdir={tmp_path / 'sweep'}"]
    assert run(["sweep", *where]) == 2
    assert "names a variant; give the file alone, and --vary=variant=A,B" in capsys.readouterr().err


def test_a_key_is_given_once(tmp_path, capsys):
    toy_tasks.write_toy(tmp_path, "classification", train=16, dev=8)
    assert sweep(tmp_path, "--vary=epochs=1", "--vary=epochs=2") == 2
    assert "--vary=epochs is given twice; write all its values into one, as epochs=V1,V2" in capsys.readouterr().err


def test_one_table_needs_one_score(tmp_path):
    toy_tasks.write_toy(tmp_path, "classification", train=16, dev=8, selection={"metric": "accuracy"})
    vary = {"selection.metric": ("accuracy", "loss")}
    request = Sweep(str(tmp_path / "recipe.json"), (), vary, (0,), str(tmp_path / "sweep"), str(tmp_path))
    with pytest.raises(UserError, match="several scores"):
        run_sweep(request)
