"""A run with a teacher that is killed, and of two processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runs.test_teacher import EVERYTHING
from tests.training import gang


@pytest.mark.heavy
def test_a_taught_run_is_killed_resumed_and_of_two_processes(tmp_path: Path) -> None:
    """On packed rows, with soft targets of both terms, a projection and attention; a resume has the same bits."""
    teacher, moved = tmp_path / "first", tmp_path / "moved"
    training = {"log_every_steps": 5, "eval_every_steps": 30, "eval_rows": 20}
    inputs = gang.make_inputs(tmp_path, 60, training=training)
    gang.finish(inputs, teacher, 1, "--config.steps=10", "--config.model.hidden_size=64", "--config.model.num_layers=2")
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    found = gang.finish(inputs, whole, 1, *EVERYTHING, f"--config.teacher.init={teacher}")
    for name in ("soft_mlm_loss", "soft_nsp_loss", "hidden_loss", "attention_loss"):
        assert found[-1][name] < found[0][name]
    gang.assert_same_losses(
        gang.finish(inputs, tmp_path / "two", 2, *EVERYTHING, f"--config.teacher.init={teacher}"), found
    )
    gang.kill_after(inputs, cut, [*EVERYTHING, f"--config.teacher.init={teacher}"])
    teacher.rename(moved)
    assert gang.finish(inputs, cut, 1, *EVERYTHING, f"--config.teacher.init={moved}") == found
    gang.assert_same_model(cut, whole)
