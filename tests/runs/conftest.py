"""Commands that stop where training would begin."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from bert_jax.runs import run as runs
from bert_jax.training.loop import Run
from bert_jax.training.state import TrainState


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """What each later command of the test hands to the training loop. There the command is interrupted (code 130)."""
    found: list[Run] = []

    def stop(run: Run) -> None:
        found.append(run)
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "train_and_evaluate", stop)
    return found


def first_state(run: Run) -> tuple[TrainState, TrainState]:
    """Return a state of ones, and the state that ``run`` makes of it to begin with."""
    assert run.start is not None
    shapes, _ = run.experiment.initial_state(run.task, run.experiment.make_mesh()).shapes
    fresh: TrainState = jax.tree.map(lambda x: jax.device_put(np.ones(x.shape, x.dtype), x.sharding), shapes)
    return fresh, run.start(fresh)
