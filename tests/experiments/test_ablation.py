"""``bert-jax ablate``: what is refused before anything runs, and (heavy) a whole table that is not made twice."""

import json
from pathlib import Path

import pytest

from bert_jax import configuration
from bert_jax.cli.main import run
from bert_jax.experiments import ablation
from bert_jax.runs import recipes
from bert_jax.runs.pretraining import PretrainingSettings
from tests import toy

RECIPE = """
import json
def get_config(variant="bert"):
    changes = {{
        "bert": {{}},
        "no_nsp": {{"objective": {{"name": "mlm"}}}},
        "ltr": {{"objective": {{"name": "ltr"}}, "attention": "causal"}},
        "blind": {{"objective": {{"name": "ltr"}}}},
        "other_text": {{"heldout_fraction": 0.3}},
    }}[variant]
    config = json.loads({base!r})
    config["objective"] = changes.get("objective", config["objective"])
    config["model"]["attention"] = changes.get("attention", "bidirectional")
    config["corpus"]["heldout_fraction"] = changes.get("heldout_fraction", 0.2)
    return config
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    base = toy.recipe(
        toy.write_text(tmp_path / "text.txt"),
        phases={"phase1": {"num_steps": 4, "batch_size": 8, "max_length": 32}},
        schedule={"kind": "linear", "peak_learning_rate": 1e-3, "warmup_steps": 2},
    ) | {"export": False, "examples": ()}
    path = tmp_path / "recipe.py"
    path.write_text(RECIPE.format(base=json.dumps(base)))
    return path


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--seeds=0,x"], "--seeds is '0,x'; give whole numbers"),
        (["--seeds=1,1"], "--seeds is '1,1'; give at least one, each once"),
        (["--variants=bert,bert"], "--variants is 'bert,bert'"),
        (["--variants=bert,nsp"], "KeyError: 'nsp'"),
        (["--variants=bert,blind"], "blind: the model is bidirectional, which shows"),
        (["--variants=bert,other_text"], "config.corpus.heldout_fraction: 0.2 -> 0.3"),
        (["--finetune=glue:sst2", "--data=nowhere"], "glue:sst2: no file for dev: nowhere/"),
        (["--config.model.hidden_size=33"], "no_nsp: config.model.hidden_size 33 does not divide"),
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


def test_the_recipe_is_given_without_a_variant(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ablate", f"--config={recipe}:bert", f"--workdir={recipe.parent / 'runs'}"]) == 2
    assert "names a variant; give the file alone, and --variants" in capsys.readouterr().err


@pytest.mark.heavy
def test_a_whole_table(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workdir = recipe.parent / "runs"
    flags = [f"--config={recipe}", "--variants=bert,no_nsp,ltr", "--seeds=0,1", f"--workdir={workdir}"]
    assert run(["ablate", *flags]) == 0
    tables = json.loads((workdir / "table.json").read_text())["metrics"]
    assert [row["variant"] for row in tables["mlm_loss"]] == ["bert", "no_nsp"]
    assert [row["variant"] for row in tables["lm_loss"]] == ["ltr"]
    assert all(row["seeds"] == 2 for rows in tables.values() for row in rows)
    text = (workdir / "table.md").read_text()
    assert "| no_nsp | 2 |" in text
    assert (workdir / "report.html").read_text().count("<table>") == len(tables)
    capsys.readouterr()
    assert run(["ablate", *flags]) == 0
    assert capsys.readouterr().out.count("already done") == 6
    assert (workdir / "table.md").read_text() == text


def test_all_are_judged_on_the_rows_of_the_first() -> None:
    for name, arrangement in (("albert:base", "sentence_order"), ("bert_base", None)):
        settings = configuration.build(PretrainingSettings, recipes.load(name).to_dict(), "config")
        assert ablation.masked_rows(settings).arrangement == arrangement
