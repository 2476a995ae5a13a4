"""A long trunk at a constant rate, and a branch from one of its steps that decays with the trunk's moments."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax.checkpoints.restoring import read_params
from tests import toy
from tests.runs.test_stages import config_of
from tests.training import gang

SIZES = {"batch_size": 8, "max_length": 16}
FLAT = {"name": "warmup_stable_decay", "peak_learning_rate": 1e-3, "warmup_steps": 2}
FALLING = {**FLAT, "warmup_steps": 0, "decay_fraction": 1.0, "decay": "one_minus_sqrt"}


def recipe(folder: Path, name: str, steps: int, schedule: dict[str, Any], **model: Any) -> Path:
    """ModernBERT in miniature with StableAdamW, scanned unless ``model`` says otherwise."""
    config = config_of(folder / "text.txt", {"phase1": {"num_steps": steps, **SIZES}})
    config["model"] |= {"dropout_rate": 0.0, "attention_output_dropout_rate": 0.0, **model}
    config["training"] |= {"log_every_steps": 1, "eval_phase": None}
    return toy.write_recipe(folder / name, config | {"schedule": schedule, "export": False})


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.heavy
def test_a_branch_decays_and_leaves_its_trunk_as_it_is(tmp_path: Path) -> None:
    toy.write_text(tmp_path / "text.txt", documents=40)
    trunk = recipe(tmp_path, "trunk.json", 16, FLAT)
    alone, long = tmp_path / "alone", tmp_path / "trunk"
    gang.finish(trunk, alone, 1)
    gang.kill_after(trunk, long, [], 8)
    before = contents(long)

    decay, unrolled = (
        recipe(tmp_path, f"{layers}.json", 8, FALLING, layers=layers) for layers in ("scanned", "unrolled")
    )
    start = [f"--init={long}@6", "--init_optimizer=kept"]
    whole, cut, other, fresh = (tmp_path / name for name in ("whole", "cut", "other", "fresh"))
    found = gang.finish(decay, whole, 1, *start)
    gang.kill_after(decay, cut, start, 2)
    assert contents(long) == before

    hidden = long.rename(tmp_path / "elsewhere")  # a resume does not need the trunk
    gang.finish(decay, cut, 1)
    hidden.rename(long)
    assert gang.records(cut) == gang.records(whole)
    gang.assert_same_model(cut, whole)

    rates = [record["learning_rate"] for record in found if record["split"] == "train"]
    np.testing.assert_allclose(rates, [1e-3 * (1 - np.sqrt(step / 8)) for step in range(8)], rtol=1e-5)
    count = read_params(str(whole), 8, "opt_state")[0]["1/count"]
    assert count == 6 + 8, "the trunk's updates and the branch's"

    gang.assert_same_losses(gang.finish(unrolled, other, 1, *start), found, rtol=1e-4)
    losses = [record["loss"] for record in gang.finish(decay, fresh, 1, start[0]) if record["split"] == "train"]
    kept = [record["loss"] for record in found if record["split"] == "train"]
    assert losses[0] == kept[0], "the same rows and parameters"
    assert losses[2] != pytest.approx(kept[2], rel=1e-4), "with other moments"

    gang.finish(trunk, long, 1)
    assert gang.records(long) == gang.records(alone)
    gang.assert_same_model(long, alone)
