"""How a run ends that cannot go on: one line that is true, and no advice to do the same again."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax.checkpoints import saving
from bert_jax.checkpoints.integrity import write_lists
from bert_jax.checkpoints.restoring import saved_steps
from bert_jax.checkpoints.saving import CheckpointConfig
from bert_jax.cli.main import run
from bert_jax.errors import RepeatingError, UserError
from bert_jax.training.experiment import TrainingConfig
from bert_jax.training.health import diverged
from bert_jax.training.mesh import MeshConfig, make_mesh
from bert_jax.training.optimizers import adamw
from bert_jax.training.schedules import linear
from bert_jax.workdir.run_record import read_run
from tests import toy
from tests.training.line import BATCH, Line, Points, train


@pytest.mark.usefixtures("one_device")
def test_a_run_that_diverges(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, workdir = toy.write_text(tmp_path / "text.txt"), tmp_path / "run"
    changes = {
        "schedule": {"peak_learning_rate": 1e38, "warmup_steps": 0},
        "checkpoints": {"every_steps": 1},
        "phases": {
            "phase1": {"num_steps": 1, "batch_size": 16, "max_length": 16},
            "phase2": {"num_steps": 23, "batch_size": 8, "max_length": 32},
        },
    }
    recipe = toy.write_recipe(tmp_path / "recipe.json", toy.recipe(text, **changes))
    assert run(["pretrain", f"--config={recipe}", f"--workdir={workdir}"]) == 2
    *said, error = capsys.readouterr().err.strip().splitlines()
    # Step 1 was saved, of finite parameters from which nothing finite comes: no advice names it.
    assert "error: loss or gradient of 10 steps in a row, from step 1 on, not finite" in error
    assert "; there is no verified step before that" in error
    assert saved_steps(str(workdir)) == [1]
    assert "in a new --workdir" in error
    assert "phases: phase1 1 steps of 16 x 16, phase2 23 steps of 8 x 32; held-out rows are of 32 throughout" in said
    assert "step 1: phase2 begins, 8 rows of 32" in said
    assert run(["status", f"--workdir={workdir}"]) == 0
    status = capsys.readouterr().out
    assert "it would end the same way" in status
    assert "bert-jax pretrain" not in status


def test_the_newest_sound_step_is_named() -> None:
    error = diverged("the parameters are not finite after 1,030 steps", 1000, False)
    assert isinstance(error, RepeatingError)
    assert "step 1,000 is the newest verified checkpoint before that" in str(error)
    assert "--init=WORKDIR@1000" in str(error)
    assert "overlap" not in str(error)
    assert "go on with --config.mesh.overlap=False first" in str(diverged("it broke", None, overlap=True))


class Ending(Points):
    """Whose rows cannot be read from step 11 on, as on a disk that is full."""

    def rows(self, epochs: np.ndarray, indices: np.ndarray) -> dict[str, np.ndarray]:
        if (indices >= 11 * BATCH).any():
            raise UserError("cannot read on")
        return super().rows(epochs, indices)


@pytest.mark.usefixtures("one_device")
def test_a_save_that_has_begun_ends_before_an_error_of_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(folder: Any) -> None:
        time.sleep(1)
        write_lists(folder)

    monkeypatch.setattr(saving, "write_lists", write)
    with pytest.raises(UserError, match="cannot read on"):
        train(tmp_path / "run", Ending(), Line, num_steps=20, save_every=11)
    assert saved_steps(str(tmp_path / "run")) == [11]
    assert not list((tmp_path / "run" / "checkpoints").glob("*tmp*"))


BAD_VALUES = {
    "training": (lambda: TrainingConfig(eval_rows=0, log_every_steps=-5), "config.training.log_every_steps is -5, "),
    "checkpoints": (lambda: CheckpointConfig(keep=0), "config.checkpoints.keep is 0; at least 1 is needed"),
    "schedule": (
        lambda: linear.Schedule(peak_learning_rate=0.0),
        "config.schedule.peak_learning_rate is 0.0; more than",
    ),
    "warm-up": (lambda: linear.Schedule(warmup_steps=-1), "config.schedule.warmup_steps is -1; at least 0"),
    "optimizer": (lambda: adamw.Optimizer(b1=1.0), "config.optimizer.b1 is 1.0; from 0 to below 1"),
    "mesh": (lambda: make_mesh(MeshConfig(data=0)), "config.mesh.data is 0; at least 1 is needed, or -1"),
    "mesh twice": (lambda: make_mesh(MeshConfig(fsdp=-1)), "config.mesh.data and config.mesh.fsdp are -1; only one"),
}


@pytest.mark.parametrize("name", BAD_VALUES)
def test_a_bad_value_is_named_by_its_key_alone(name: str) -> None:
    make, expected = BAD_VALUES[name]
    with pytest.raises(UserError) as error:
        make()
    assert expected in str(error.value)
    assert "Config(" not in str(error.value)


SPOILT = (
    "{bad",
    "[]",
    '{"format": 2, "skipped_steps": "x"}',
    '{"format": 2, "skipped_steps": [{"step": 1}]}',
    '{"format": 2, "rolled_back": [[20, 22]]}',
    '{"format": 2, "rolled_back": [{"at": "x"}]}',
    '{"format": 2, "run_id": "r", "identity": {"init": 5}}',
    '{"format": 2, "identity": {"seed": 0}}',
)


@pytest.mark.parametrize("content", SPOILT)
def test_a_spoilt_run_file_is_one_line(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(UserError, match="run.json is damaged.*put it back"):
        read_run(str(tmp_path))
    (tmp_path / "run.json").write_text(json.dumps({"format": 2, "run_id": "r"}))
    found: dict[str, Any] = read_run(str(tmp_path))
    assert found == {"format": 2, "run_id": "r"}
