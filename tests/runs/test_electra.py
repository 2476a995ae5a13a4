"""ELECTRA from text to a fine-tuned model, by the commands alone."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from bert_jax.checkpoints.restoring import read_params, saved_steps
from bert_jax.cli.main import run
from bert_jax.interchange.loading import load
from tests import toy
from tests.tasks import toy_tasks

pytestmark = [pytest.mark.heavy, pytest.mark.usefixtures("one_device")]


def same(one: Any, other: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, one, other)


def write_recipe(folder: Path) -> Path:
    """A recipe with dropout, scanned layers and a generator of half the width, whose batches are computed in parts."""
    recipe = toy.recipe(
        toy.write_text(folder / "text.txt", documents=30),
        model={"encoder": "electra", "embedding_size": 8, "num_layers": 2, "dropout_rate": 0.1, "layers": "scanned"},
        objective={"name": "replaced_tokens", "packing": "packed", "generator_size": 0.5},
        phases={"phase1": {"num_steps": 4, "batch_size": 8, "max_length": 32}},
        training={"eval_every_steps": 2, "micro_batches": 2, "loggers": ()},
        checkpoints={"every_steps": 2},
    )
    return toy.write_recipe(folder / "pretraining.json", recipe)


def test_pretrained_resumed_exported_asked_and_fine_tuned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, workdir = write_recipe(tmp_path), tmp_path / "pretrained"
    assert run(["pretrain", f"--config={config}", f"--workdir={workdir}"]) == 0
    said = capsys.readouterr().err
    assert "the [MASK] sees the river." in said  # the generator fills it
    [verdict] = re.findall(r"held-out replaced loss .* entropy of the replaced share 0\.\d{3}\n(.*)\n", said)
    assert re.match(r"held-out replaced precision 0\.\d{3} with recall 0\.\d{3}", verdict), "it leads"
    about = json.loads((workdir / "run.json").read_text())["about"]
    tensors = load_file(workdir / "hugging_face" / "model.safetensors").values()
    assert about["parameters"] == sum(tensor.size for tensor in tensors), "without the generator"
    manifest = json.loads((workdir / "corpus" / "manifest.json").read_text())
    assert (about["family"], about["documents"]) == ("ELECTRA", manifest["splits"]["train"]["num_documents"])
    assert "<h1>ELECTRA, " in (workdir / "report.html").read_text()
    measured = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    assert {"mlm_loss", "replaced_loss", "replaced_accuracy", "replaced_precision"} <= measured[-1].keys()

    cut = shutil.copytree(workdir, tmp_path / "cut")
    shutil.rmtree(cut / "checkpoints" / "4")
    assert saved_steps(str(cut)) == [2]
    assert run(["pretrain", f"--config={config}", f"--workdir={cut}"]) == 0
    assert saved_steps(str(cut))[-1] == 4
    same(read_params(str(cut))[0], read_params(str(workdir))[0])

    trained = load(str(workdir))
    assert set(trained.params) == {"encoder", "discriminator_head", "generator"}
    assert trained.head.architecture == "ElectraForPreTraining"
    discriminator = load(str(workdir / "hugging_face"))
    same(dict(discriminator.params), {name: trained.params[name] for name in ("encoder", "discriminator_head")})
    flags = ["--as=ElectraForMaskedLM", f"--output={tmp_path / 'generator'}"]
    assert run(["export", f"--workdir={workdir}", *flags]) == 0
    generator = load(str(tmp_path / "generator"))
    assert (generator.config.hidden_size, generator.config.embedding_size) == (16, 8)
    same(generator.params["encoder"]["embeddings"], trained.params["encoder"]["embeddings"])
    same(generator.params["encoder"]["layer_1"], trained.params["generator"]["encoder"]["layer_1"])
    same(generator.params["mlm_head"], trained.params["generator"]["mlm_head"])

    capsys.readouterr()
    asked = []
    for source in (workdir, tmp_path / "generator"):
        assert run(["fill-mask", f"--workdir={source}", "the [MASK] sees the river."]) == 0
        asked.append(capsys.readouterr().out)
    assert asked[0] == asked[1]

    more = ["--config.phases.phase1.num_steps=1", "--config.schedule.warmup_steps=0", "--config.export=False"]
    assert run(["pretrain", f"--config={config}", f"--workdir={tmp_path / 'on'}", f"--init={workdir}", *more]) == 0
    said = capsys.readouterr().err
    assert "starting from" in said
    assert "fresh" not in said
    half = [f"--workdir={tmp_path / 'half'}", f"--init={workdir / 'hugging_face'}"]
    assert run(["pretrain", f"--config={config}", *half, *more]) == 0
    assert "fresh: generator" in capsys.readouterr().err

    toy_tasks.write_toy(tmp_path, "classification", train=32, dev=16, phase={"num_epochs": 1}, export=True)
    assert toy_tasks.finetune(tmp_path, f"--init={workdir / 'hugging_face'}") == 0
    tuned = load(str(tmp_path / "run"))
    assert tuned.config.encoder == "electra"
    assert tuned.head.architecture == "ElectraForSequenceClassification"
    assert (tmp_path / "run" / "hugging_face" / "model.safetensors").exists()
