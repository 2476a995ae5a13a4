"""ALBERT from text to a fine-tuned model, by the commands alone."""

import json
from pathlib import Path

import pytest

from bert_jax.cli.main import run
from bert_jax.interchange.loading import load
from tests import toy
from tests.tasks import toy_tasks

pytestmark = [pytest.mark.heavy, pytest.mark.usefixtures("one_device")]


def test_pretrained_exported_asked_and_fine_tuned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = toy.recipe(
        toy.write_text(tmp_path / "text.txt", documents=30),
        model={"encoder": "albert", "embedding_size": 8, "num_layers": 2},
        objective={"name": "mlm_sop", "packing": "packed", "masking": {"strategy": "ngrams", "unit": "word"}},
        phases={"phase1": {"num_steps": 2, "batch_size": 8, "max_length": 32}},
        optimizer={"name": "lamb", "bias_correction": "none"},
        schedule={"name": "linear_from_zero", "peak_learning_rate": 0.00176, "warmup_steps": 1},
        training={"eval_every_steps": 2, "loggers": ()},
        checkpoints={"every_steps": 2},
        examples=(),
        export=True,
    )
    config, workdir = toy.write_recipe(tmp_path / "recipe.json", recipe), tmp_path / "pretrained"
    assert run(["pretrain", f"--config={config}", f"--workdir={workdir}"]) == 0
    measured = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    assert {"mlm_loss", "sop_loss", "sop_accuracy"} <= measured[-1].keys()
    described = json.loads((workdir / "hugging_face" / "config.json").read_text())
    assert (described["architectures"], described["embedding_size"]) == (["AlbertForPreTraining"], 8)
    trained = load(str(workdir))
    assert set(trained.params["encoder"]) == {"embeddings", "embedding_projection", "layer"}

    capsys.readouterr()
    assert run(["fill-mask", f"--workdir={workdir}", "the [MASK] sees the river."]) == 0
    assert "the [MASK] sees" in capsys.readouterr().out

    toy_tasks.write_toy(tmp_path, "classification", train=32, dev=16, phase={"num_epochs": 1}, export=True)
    finetuning = json.loads((tmp_path / "recipe.json").read_text())
    assert finetuning["task"] == {"name": "classification"}
    assert toy_tasks.finetune(tmp_path, f"--init={workdir / 'hugging_face'}") == 0
    tuned = load(str(tmp_path / "run"))
    assert tuned.config.encoder == "albert"
    assert tuned.head.architecture == "AlbertForSequenceClassification"
    assert (tmp_path / "run" / "hugging_face" / "model.safetensors").exists()
