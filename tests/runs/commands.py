"""``bert-jax pretrain`` on a config tree, and what a run begins with and leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bert_jax.cli.main import run
from bert_jax.training.loop import Run
from bert_jax.training.state import TrainState
from tests import toy


def pretrain(folder: Path, config: dict[str, Any], *flags: str) -> int:
    """Return the exit code of a run in ``folder / "run"``."""
    recipe = toy.write_recipe(folder / "recipe.json", config)
    return run(["pretrain", f"--config={recipe}", f"--workdir={folder / 'run'}", *flags])


def records(workdir: Path, split: str) -> list[dict[str, Any]]:
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    return [record for record in lines if record["split"] == split]


def first_state(run: Run) -> tuple[TrainState, TrainState]:
    """Return a state of ones, and the state that ``run`` makes of it to begin with."""
    assert run.start is not None
    shapes, _ = run.experiment.initial_state(run.task, run.experiment.make_mesh()).shapes
    fresh: TrainState = jax.tree.map(lambda x: jax.device_put(np.ones(x.shape, x.dtype), x.sharding), shapes)
    return fresh, run.start(fresh)
