"""A run with memory that is cut goes on with the same memory, on the same or on other devices and hosts."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest

from bert_jax.checkpoints.restoring import saved_steps
from bert_jax.cluster.exit_codes import PEER_LOST
from tests.training import gang
from tests.training.test_memory import ENCODER

STEPS = 26
FLAG = f"--config.model.encoder={ENCODER}"


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of memory that reaches over several steps; it has more steps than an epoch."""
    path = gang.make_inputs(tmp_path_factory.mktemp("inputs"), num_steps=STEPS, every_steps=8)
    config = json.loads(path.read_text())
    config["objective"] = {"name": "ltr", "arrangement": "streams"}
    config["model"] = {"hidden_size": 32, "max_length": 32, "memory_length": 80, "initializer_range": 0.2}
    path.write_text(json.dumps(config))
    return path


@pytest.fixture(scope="module")
def whole(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never cut, on one device."""
    workdir = tmp_path_factory.mktemp("whole") / "run"
    gang.train(recipe, workdir, FLAG)
    return workdir


def test_a_run_that_is_cut_ends_with_the_same_bits(recipe: Path, whole: Path, tmp_path: Path) -> None:
    """On other devices it ends with the same losses."""
    cut = tmp_path / "run"
    gang.break_off(recipe, cut, 21, FLAG)
    assert saved_steps(str(cut)) == [8, 16]
    shutil.copytree(cut, tmp_path / "other")
    assert gang.train(recipe, cut, FLAG) == gang.records(whole)
    gang.assert_same_model(cut, whole)
    assert (cut / "checkpoints" / str(STEPS)).exists()
    found = gang.train(recipe, tmp_path / "other", FLAG, devices=4)
    gang.assert_same_losses(found, gang.records(whole))


def test_losses_tell_memory_that_was_lost(recipe: Path, whole: Path, tmp_path: Path) -> None:
    """Without the memory of earlier steps the same run has other losses."""
    found = gang.train(recipe, tmp_path / "run", FLAG, "--config.model.memory_length=0")
    wanted = gang.records(whole)
    step = next(number for number, record in enumerate(wanted) if record["step"] == 2)
    assert abs(found[step]["loss"] - wanted[step]["loss"]) > 1e-4


@pytest.mark.heavy
def test_one_of_two_processes_is_killed_and_one_goes_on(recipe: Path, tmp_path: Path) -> None:
    """Its losses are as of one process that was never cut."""
    flags = [FLAG, "--config.phases.phase1.num_steps=150"]
    wanted, cut = gang.train(recipe, tmp_path / "whole", *flags), tmp_path / "run"
    job = gang.Gang(recipe, cut, 2, flags)
    job.until(lambda: saved_steps(str(cut)))
    job.send(1, signal.SIGKILL)
    assert job.end()[0][0] == PEER_LOST
    assert 0 < max(saved_steps(str(cut))) < 150
    gang.assert_same_losses(gang.train(recipe, cut, *flags), wanted, rtol=1e-4)
