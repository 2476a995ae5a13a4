"""ELMo from text to features: pretrained with a state, read by every verb, mixed into a tagger that learns alone."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import numpy as np
import pyarrow.parquet as pq
import pytest

import bert_jax
from bert_jax.cli.main import run
from tests import toy
from tests.tasks import toy_tasks
from tests.training import gang
from tests.training.gang import records


@pytest.fixture(scope="module")
def elmo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four steps."""
    folder = tmp_path_factory.mktemp("elmo")
    recipe = toy.recipe(
        toy.write_text(folder / "text.txt"),
        objective={"name": "bilm", "arrangement": "streams"},
        model=toy.MODELS["bilm"] | {"memory_length": 1, "num_layers": 2},
        phases={"phase1": {"num_steps": 4, "batch_size": 8, "max_length": 16}},
        schedule={"warmup_steps": 1},
        optimizer={"name": "adagrad"},
        training={"log_every_steps": 2, "eval_every_steps": 4, "eval_rows": 8, "loggers": (), "micro_batches": 2},
    )
    path = toy.write_recipe(folder / "recipe.json", recipe)
    with toy.one_device():
        assert run(["pretrain", f"--config={path}", f"--workdir={folder / 'run'}"]) == 0
    return folder / "run"


def test_elmo_is_pretrained_and_its_vectors_are_features(
    elmo: Path, tmp_path: Path, one_device: None, capsys: pytest.CaptureFixture[str]
) -> None:
    last = [record for record in records(elmo) if record["split"] == "eval"][-1]
    mean = (last["forward_loss"] + last["backward_loss"]) / 2
    assert last["perplexity"] == pytest.approx(np.exp(mean), rel=1e-4)
    report = (elmo / "report.html").read_text()
    assert "Loss of the token after, nats" in report
    assert "Loss of the token before, nats" in report
    assert not (elmo / "examples.json").exists()
    assert not (elmo / "hugging_face").exists()

    capsys.readouterr()
    assert run(["fill-mask", f"--workdir={elmo}", "the [MASK] sees."]) == 2
    assert "a model that reads both ways, apart, cannot fill a [MASK]" in capsys.readouterr().err
    assert run(["generate", f"--workdir={elmo}", "the cat"]) == 2
    assert capsys.readouterr().err.count("\n") == 1

    (tmp_path / "texts.txt").write_text("the cat sees the river.\na dog.\n")
    out, layers = tmp_path / "features.parquet", "embeddings,last,mean"
    words = f"--input={tmp_path / 'texts.txt'}"
    assert run(["features", f"--workdir={elmo}", words, f"--output={out}", f"--layers={layers}"]) == 0
    row = pq.read_table(out).to_pylist()[0]
    assert {len(row["mean"]), *(len(token) for name in ("embeddings", "last") for token in row[name])} == {32}
    found = bert_jax.load(str(elmo)).encode(["the cat sees the river.", "a dog."])
    np.testing.assert_allclose(found[0], row["mean"], atol=1e-5)
    search = ["retrieve", f"--workdir={elmo}", f"--corpus={tmp_path / 'texts.txt'}", "--query=a dog.", "--json"]
    assert run(search) == 0
    assert "a dog." in capsys.readouterr().out


def test_a_tagger_on_frozen_elmo_learns_a_mix_of_its_layers(elmo: Path, tmp_path: Path, one_device: None) -> None:
    toy_tasks.write_toy(tmp_path, "tagging", 48, 16)
    recipe = toy_tasks.recipe("tagging", schedule={"peak_learning_rate": 3e-2})
    recipe["task"] = {"name": "feature_tagging", "layers": "weighted_sum_with_embeddings", "lstm_size": 8}
    (tmp_path / "recipe.json").write_text(json.dumps(recipe | {"frozen": ("encoder",), "model": {}, "vocab": {}}))
    assert toy_tasks.finetune(tmp_path, f"--init={elmo}", workdir="tagger") == 0
    losses = [record["loss"] for record in toy_tasks.evaluations(tmp_path, "tagger")]
    assert losses[-1] < 0.9 * losses[0]
    before, after = (bert_jax.load(str(path)) for path in (elmo, tmp_path / "tagger"))
    jax.tree.map(np.testing.assert_array_equal, before.params["encoder"], after.params["encoder"])
    mix = after.params["layer_mix"]
    assert mix["weights"].shape == (3,)
    assert np.ptp(mix["weights"]) > 1e-3
    assert float(mix["scale"]) != 1.0


@pytest.mark.heavy
def test_a_run_that_is_cut_goes_on_with_the_same_state(tmp_path: Path) -> None:
    path = gang.make_inputs(tmp_path, num_steps=26, every_steps=8)
    config = json.loads(path.read_text())
    config["objective"] = {"name": "bilm", "arrangement": "streams"}
    config["model"] = {**toy.MODELS["bilm"], "hidden_size": 32, "max_length": 32, "memory_length": 1}
    path.write_text(json.dumps(config))
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    gang.train(path, whole)
    gang.break_off(path, cut, 21)
    assert gang.train(path, cut) == records(whole)
    gang.assert_same_model(cut, whole)
