"""A run in stages, as ModernBERT is trained: short rows, long rows with another base of rotation, and a decay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import pytest

import bert_jax
from bert_jax.cli.main import run
from bert_jax.errors import UserError
from bert_jax.objectives.several import SeveralObjectives
from bert_jax.recipes import recipes
from bert_jax.recipes.pretraining_settings import PretrainingSettings
from bert_jax.runs.pretraining import Pretraining
from tests import toy
from tests.training import gang

LONG = {"model": {"global_theta": 160_000.0}}
STAGES: dict[str, Any] = {
    "1_short": {"num_steps": 8, "batch_size": 8, "max_length": 16},
    "2_long": {"num_steps": 4, "batch_size": 2, "max_length": 64, **LONG},
    "3_decay": {
        "num_steps": 4,
        "batch_size": 2,
        "max_length": 64,
        **LONG,
        "masking": {"rate": 0.15},
        "schedule": {"name": "warmup_stable_decay", "peak_learning_rate": 1e-3, "warmup_steps": 0}
        | {"decay_steps": 4, "decay": "one_minus_sqrt"},
    },
}
CHANGES: dict[str, Any] = {
    "objective": {"name": "mlm", "arrangement": "sentences", "packing": "packed", "masking": {"rate": 0.3}},
    "optimizer": {"name": "stable_adamw"},
    "schedule": {"name": "warmup_stable_decay"},
    "training": {"log_every_steps": 2, "eval_every_steps": 8, "eval_rows": 8, "loggers": (), "eval_phase": "3_decay"},
    "checkpoints": {"every_steps": 2, "keep": 100},
    "examples": (),
}


def config_of(text: Path, stages: dict[str, Any]) -> dict[str, Any]:
    model = {"encoder": "modernbert", "hidden_size": 32, "num_layers": 2, "num_heads": 2, "mlp_dim": 48}
    model |= {"local_attention": 8, "max_length": 64, "layers": "scanned", "global_theta": 10_000.0}
    return toy.recipe(text, **CHANGES) | {"phases": stages, "model": model}


def task_of(folder: Path, **stages: Any) -> Any:
    recipe = config_of(folder / "text.txt", {**STAGES, **stages})
    settings = PretrainingSettings.of(recipes.with_values(recipe, {}).to_dict())
    return Pretraining(settings, devices=jax.devices()[:1])


def test_a_phase_has_its_own_base_of_rotation_and_one_set_of_parameters(tmp_path: Path) -> None:
    task = task_of(tmp_path).task
    assert isinstance(task, SeveralObjectives)
    bases = [task.of(kind).setting.model.global_theta for kind in STAGES]
    assert bases == [10_000.0, 160_000.0, 160_000.0]
    assert task.of("2_long") is not task.of("1_short")
    assert task.setting.model.global_theta == 160_000.0, "what the run is at its end"
    assert {task.of(kind).trains for kind in STAGES} == {None}
    # held-out rows are read with the base of the phase that is trained
    read: list[Any] = [task.reader("3_decay", kind) for kind in STAGES]
    assert [one.setting.model.global_theta for one in read] == bases


def test_a_run_in_stages_ends_as_the_model_of_its_last(tmp_path: Path) -> None:
    text = toy.write_text(tmp_path / "text.txt", documents=40)
    recipe = toy.write_recipe(tmp_path / "recipe.json", config_of(text, STAGES))
    arguments = [f"--config={recipe}", f"--workdir={tmp_path / 'run'}", "--config.checkpoints.every_steps=4"]
    with toy.one_device():
        assert run(["pretrain", *arguments]) == 0
    rates = {r["step"]: r["learning_rate"] for r in gang.records(tmp_path / "run") if r["split"] == "train"}
    assert rates[16] < rates[14] < rates[12] == pytest.approx(1e-3)
    exported = json.loads((tmp_path / "run" / "hugging_face" / "config.json").read_text())
    assert exported["rope_parameters"]["full_attention"]["rope_theta"] == 160_000.0
    models = [bert_jax.load(str(tmp_path / "run" / folder)).config for folder in ("", "hugging_face")]
    assert models[0] == models[1]
    bases = {step: bert_jax.load(f"{tmp_path / 'run'}@{step}").config.global_theta for step in (4, 8, 12, 16)}
    assert bases == {4: 10_000.0, 8: 10_000.0, 12: 160_000.0, 16: 160_000.0}, (
        "a step has the base that it was trained with"
    )


@pytest.mark.heavy
def test_a_run_in_stages_is_killed_in_each_and_resumes_bit_for_bit(tmp_path: Path) -> None:
    text = toy.write_text(tmp_path / "text.txt", documents=40)
    recipe = toy.write_recipe(tmp_path / "recipe.json", config_of(text, STAGES))
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    gang.finish(recipe, whole, 1)
    for step in (4, 10, 14):
        gang.kill_after(recipe, cut, [], step)
    gang.finish(recipe, cut, 1)
    assert gang.records(cut) == gang.records(whole)
    gang.assert_same_model(cut, whole)


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        (
            {"2_long": {"num_steps": 4, "batch_size": 2, "max_length": 64}},
            "config.phases.2_long.max_length is 64, and rows before have at most 16; say which base rotary positions",
        ),
        (
            {"2_long": STAGES["2_long"], "3_decay": {"num_steps": 4, "batch_size": 2, "max_length": 64}},
            "config.phases.3_decay.max_length is 64, and rows before have at most 16; say which base rotary positions",
        ),
        (
            {"2_long": STAGES["2_long"] | {"model": {"global_thta": 1e5}}},
            r"unknown key config.phases.2_long.model.global_thta; .*global_theta",
        ),
        (
            {"2_long": STAGES["2_long"] | {"model": {"global_theta": 1e5, "mlp_dim": 64}}},
            "config.phases.2_long.model has global_theta, mlp_dim, which would give parameters another shape",
        ),
        (
            {"2_long": STAGES["2_long"] | {"max_length": 128}},
            r"max_length of 128 \(2_long\) exceeds the model's 64 positions",
        ),
    ],
)
def test_stages_that_cannot_be(tmp_path: Path, stages: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        task_of(tmp_path, **stages)
