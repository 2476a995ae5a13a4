"""``bert-jax ablate``: what is refused before anything runs, and (heavy) a whole table that is not made twice."""

import dataclasses
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from bert_jax.cli.main import run
from bert_jax.experiments import ablation
from bert_jax.experiments.ablation_table import Results, cell_name
from bert_jax.experiments.nouns import MetricColumn
from tests import toy
from tests.tasks import toy_tasks

RECIPE = """
import json
def get_config(variant="bert"):
    changes = {{
        "bert": {{}},
        "no_nsp": {{"objective": {{"name": "mlm"}}}},
        "ltr": {{"objective": {{"name": "ltr"}}}},
        "sop": {{"objective": {{"name": "mlm_sop"}}}},
        "other_text": {{"heldout_fraction": 0.3}},
        "more_masks": {{"objective": {{"name": "mlm", "masking": {{"rate": 0.3}}}}}},
        "columns": {{"objective": {{"name": "mlm", "masking": {{"unit": "no_such"}}}}}},
        "weighted": {{"objective": {{"name": "./weighted.py"}}}},
        "slip": {{"objective": {{"name": "./slip.py"}}}},
        "short": {{"objective": {{"name": "mlm"}}, "length": 16}},
    }}[variant]
    config = json.loads({base!r})
    config["objective"] = changes.get("objective", config["objective"])
    if "length" in changes:
        config["model"]["max_length"] = config["phases"]["phase1"]["max_length"] = changes["length"]
    config["corpus"]["heldout_fraction"] = changes.get("heldout_fraction", 0.2)
    return config
"""

WEIGHTED = """
from bert_jax.objectives import base, mlm

Config = base.Config


class Objective(mlm.Objective):
    derived = ("halves",)

    def terms(self, config):
        halves = base.prediction("mlm_logits", "masked_labels", "halves", baseline="none")
        return {"mlm": halves, "plain": base.MLM}

    def inputs(self, batch):
        return {**batch, "halves": batch["masked_weights"] * 0.5}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    base = toy.recipe(
        toy.write_text(tmp_path / "text.txt"),
        phases={"phase1": {"num_steps": 4, "batch_size": 8, "max_length": 32}},
        schedule={"name": "linear", "peak_learning_rate": 1e-3, "warmup_steps": 2},
    ) | {"export": False, "examples": ()}
    path = tmp_path / "recipe.py"
    path.write_text(RECIPE.format(base=json.dumps(base)))
    (tmp_path / "weighted.py").write_text(WEIGHTED)
    (tmp_path / "slip.py").write_text(WEIGHTED.replace("* 0.5", "* batch['no_such']"))
    return path


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--seeds=0,x"], "--seeds: found '0,x'; give whole numbers"),
        (["--seeds=1,1"], "--seeds is '1,1'; give at least one, each once"),
        (["--variants=bert,bert"], "--variants is 'bert,bert'"),
        (["--variants=bert,nsp"], "KeyError: 'nsp'"),
        (["--variants=bert,other_text"], "config.corpus.heldout_fraction: 0.2 -> 0.3"),
        (["--finetune=glue:sst2", "--data=nowhere"], "glue:sst2: no file for dev: nowhere/"),
        (
            ["--finetune=glue:sst2 --batch_size=0", "--data=nowhere"],
            "size=0: config.phases.train.batch_size is 0",
        ),
        (["--config.model.hidden_size=33"], "no_nsp: config.model.hidden_size 33 does not divide"),
        (["--finetune_steps=2,2", "--finetune=glue:sst2"], "--finetune_steps is '2,2'; give at least one, each once"),
        (["--finetune_steps=0", "--finetune=glue:sst2"], "--finetune_steps has 0; steps that are saved are 1 and more"),
        (["--finetune_steps=2"], "--finetune_steps are fine-tuned by a recipe; give --finetune=RECIPE"),
        (["--variants=bert,short"], "(the held-out rows of bert, on which short is judged too) exceeds the model's 16"),
    ],
)
def test_bad_input_is_named_before_anything_runs(
    recipe: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    workdir = recipe.parent / "runs"
    defaults = [f"--config={recipe}", "--variants=no_nsp,ltr", f"--workdir={workdir}"]
    assert run(["ablate", *defaults, *flags]) == 2
    assert message in capsys.readouterr().err
    assert not workdir.exists()


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ("{}", "whose runs would have one name, 'tune'; leave one out"),
        ("other.json --config.phases.train.max_length=48", "error: other.json --config.phases.train.max_length=48: "),
        ("other.json --config.selection.metric=no_such", "config.selection.metric is 'no_such'"),
        ("other.json --config.data.train_fraction=0.1", "keeps 1 of 8 examples, and none of them has the label"),
    ],
)
def test_what_is_wrong_with_a_fine_tuning_is_named_before_any_pretraining(
    recipe: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, second: str, message: str
) -> None:
    monkeypatch.chdir(recipe.parent)
    tune = toy_tasks.write_toy(recipe.parent, "classification", train=8, dev=8).rename("tune.json")
    shutil.copy(tune, "other.json")
    flags = ["--finetune=tune.json", f"--finetune={second.format('tune.json')}", "--workdir=runs"]
    assert run(["ablate", "--config=recipe.py", "--variants=no_nsp,ltr", *flags]) == 2
    assert message in capsys.readouterr().err
    assert not list(Path().glob("runs/*seed*"))


def test_a_step_that_is_not_kept_is_named_before_any_pretraining(
    recipe: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(recipe.parent)
    toy_tasks.write_toy(recipe.parent, "classification", train=8, dev=8).rename("tune.json")
    flags = ["--finetune=tune.json", "--finetune_steps=1,2,4", "--config.checkpoints.keep=1", "--workdir=runs"]
    assert run(["ablate", "--config=recipe.py", "--variants=no_nsp,ltr", *flags]) == 2
    told = capsys.readouterr().err
    assert (
        "--finetune_steps has 1, 2, not kept by no_nsp-seed0, which keeps 4; to keep such steps of new runs: " in told
    )
    assert "--config.checkpoints.every_steps=1 --config.checkpoints.keep_every_steps=1" in told
    assert not Path("runs").exists()


def test_a_step_that_a_cut_run_can_no_longer_keep_is_named(
    recipe: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(recipe.parent)
    toy_tasks.write_toy(recipe.parent, "classification", train=8, dev=8).rename("tune.json")
    monkeypatch.setattr(ablation, "saved_steps", lambda place: [2])
    keep = ["--config.checkpoints.every_steps=1", "--config.checkpoints.keep_every_steps=1"]
    flags = ["--finetune=tune.json", "--finetune_steps=1,2,3", *keep, "--workdir=runs"]
    assert run(["ablate", "--config=recipe.py", "--variants=no_nsp", *flags]) == 2
    assert "has 1, not kept by no_nsp-seed0, which keeps 2, 3, 4" in capsys.readouterr().err


def test_a_fine_tuning_is_another_with_other_data_and_keeps_its_own_bilstm(
    recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(recipe.parent)
    toy_tasks.write_toy(recipe.parent, "classification", train=8, dev=8, bilstm_layers=1).rename("tune.json")
    Path("there").mkdir()
    for name in ("train.jsonl", "dev.jsonl"):
        shutil.copy(name, "there")
    given = ablation.Ablation(str(recipe), (), ("no_nsp", "no_nsp+bilstm"), (0,), "runs", finetune=("tune.json",))
    loaded = {"no_nsp": ablation._load(given, "no_nsp")}
    first = ablation._pretraining_cells(given, loaded, loaded["no_nsp"].variant.rows)
    cells = []
    for data in (".", "there"):
        asked = dataclasses.replace(given, data=data)
        cells.append(ablation._tuning_cells(asked, ablation._tunings(asked, loaded)[0], first))
    assert [[cell.overrides["data"] for cell in of_data] for of_data in cells] == [["."] * 2, ["there"] * 2]
    assert [cell.overrides["config"]["bilstm_layers"] for cell in cells[0]] == [1, 2]
    assert [cell.name for cell in cells[0]] == ["tune-no_nsp-seed0", "tune-no_nsp+bilstm-seed0"]


def test_the_recipe_is_given_without_a_variant(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ablate", f"--config={recipe}:bert", f"--workdir={recipe.parent / 'runs'}"]) == 2
    assert "names a variant; give the file alone, and --variants" in capsys.readouterr().err


def test_a_slip_in_the_code_of_a_variant_is_found_before_anything_runs(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["ablate", f"--config={recipe}", "--variants=no_nsp,slip", f"--workdir={recipe.parent / 'runs'}"]) == 2
    assert re.match(r"error: slip: objective 'slip.py@\w+' needs no_such, which", capsys.readouterr().err)
    assert not (recipe.parent / "runs").exists()


def test_a_corpus_without_the_column_of_a_variant_is_named_before_anything_runs(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, flags = recipe.parent, [f"--config={recipe}"]
    assert run(["vocab", *flags, f"--output={folder / 'vocab.txt'}"]) == 0
    flags.append(f"--config.vocab.path={folder / 'vocab.txt'}")
    assert run(["corpus", *flags, f"--output={folder / 'corpus'}"]) == 0
    flags += [f"--config.corpus.path={folder / 'corpus'}", "--variants=no_nsp,columns", f"--workdir={folder / 'runs'}"]
    assert run(["ablate", *flags]) == 2
    assert "no_such" in capsys.readouterr().err
    assert not list(folder.glob("runs/*seed*"))


def test_only_what_measures_the_same_is_compared(recipe: Path) -> None:
    """A term is the same in two variants if it reads the same features, of the same rows."""
    asked = ablation.Ablation(str(recipe), (), (), (0,), "runs")
    variants = {name: ablation._load(asked, name).variant for name in ("no_nsp", "bert", "more_masks", "weighted")}

    def columns(own: Sequence[str]) -> dict[str, MetricColumn]:
        metrics = {name: {"own_mlm_loss": 1.0} if name in own else {} for name in variants}
        runs = {cell_name(name, 0): {**found, "mlm_loss": 1.0} for name, found in metrics.items()}
        runs[cell_name("bert", 0, "sst2")] = {"loss": 1.0}
        return Results(str(recipe.parent), tuple(variants), (0,), runs, variants, {"sst2": "accuracy"}).columns()

    found = columns([*variants])
    assert list(found) == ["own_mlm_loss", "mlm_loss", "sst2/loss"]
    own, plain = found["own_mlm_loss"], found["mlm_loss"]
    assert own.measures is not None
    assert plain.measures is not None
    assert [name for name in variants if own.measures[name] == own.measures["no_nsp"]] == ["no_nsp", "bert"]
    assert len(set(plain.measures.values())) == 1
    assert own.line.endswith("more_masks, weighted and no_nsp measure different things by it, and are not compared")
    assert "those of no_nsp; lower is better" in plain.line
    assert found["sst2/loss"].line == "loss of sst2's best evaluation after fine-tuning with it; lower is better"
    assert list(columns(["no_nsp", "bert"])) == ["mlm_loss", "sst2/loss"], "it says what mlm_loss says"


def test_variants_without_a_metric_are_left_out_of_its_column() -> None:
    metrics = {
        "bert-seed0": {"mlm": 1.0, "nsp": 0.9},
        "bert-seed1": {"mlm": 2.0, "nsp": 0.8},
        "ltr-seed0": {"lm": 3.0},
        "ltr-seed1": {"lm": 4.0},
    }
    assert Results("runs", ("bert", "ltr"), (0, 1), metrics, {}, {}).scores() == {
        "mlm": {"bert": [1.0, 2.0]},
        "nsp": {"bert": [0.9, 0.8]},
        "lm": {"ltr": [3.0, 4.0]},
    }


@pytest.mark.heavy
def test_a_whole_table(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workdir = recipe.parent / "runs"
    flags = [f"--config={recipe}", "--variants=bert,no_nsp,ltr", "--seeds=0,1", f"--workdir={workdir}"]
    assert run(["ablate", *flags]) == 0
    written = json.loads((workdir / "table.json").read_text())
    tables, scores = written["metrics"], written["scores"]
    for row in tables["mlm_loss"]:
        assert sum(scores["mlm_loss"][row["variant"]]) / 2 == pytest.approx(row["mean"])
    assert [row["variant"] for row in tables["mlm_loss"]] == ["bert", "no_nsp"]
    assert [row["variant"] for row in tables["lm_loss"]] == ["ltr"]
    assert all(row["seeds"] == 2 for rows in tables.values() for row in rows)
    text = (workdir / "table.md").read_text()
    assert "| no_nsp | 2 |" in text
    assert "| without learning |  | " in text
    assert "unigram" in text
    assert "| mlm_loss | no_nsp - bert | " in text
    assert (workdir / "report.html").read_text().count("<table>") == 3
    capsys.readouterr()
    assert run(["ablate", *flags]) == 0
    assert capsys.readouterr().out.count("already done") == 6
    assert (workdir / "table.md").read_text() == text
    assert run(["ablate", *flags, "--config.seed=7", "--config.model.num_layers=1"]) == 2
    told = capsys.readouterr().err
    assert "bert-seed0, no_nsp-seed0, ltr-seed0, bert-seed1 and 2 more (config." in told
    assert "or move these folders away" in told
    assert (workdir / "table.md").read_text() == text


def test_all_are_judged_on_the_rows_of_the_first(recipe: Path) -> None:
    asked = ablation.Ablation(str(recipe), (), (), (0,), "runs")
    for name, arrangement in (("sop", "sentence_order"), ("bert", None)):
        assert ablation._load(asked, name).variant.rows.record["arrangement"] == arrangement
