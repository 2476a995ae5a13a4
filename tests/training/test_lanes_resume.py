"""A run with memory that is cut goes on with the same memory."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from bert_jax.checkpoints.restoring import saved_steps
from bert_jax.cluster.exit_codes import PEER_LOST
from tests.training import gang

STEPS = 26


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of memory that reaches over several steps; it has more steps than an epoch."""
    path = gang.make_inputs(tmp_path_factory.mktemp("inputs"), num_steps=STEPS, every_steps=8)
    config = json.loads(path.read_text())
    config["objective"] = {"name": "ltr", "arrangement": "streams"}
    sizes = {"hidden_size": 32, "num_layers": 2, "num_heads": 2, "mlp_dim": 64, "max_length": 32, "layers": "scanned"}
    config["model"] = {
        "encoder": "transformer_xl",
        "memory_length": 80,
        "layers": "scanned",
        "initializer_range": 0.2,
        **sizes,
    }
    path.write_text(json.dumps(config))
    return path


@pytest.fixture(scope="module")
def whole(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never cut, on one device."""
    workdir = tmp_path_factory.mktemp("whole") / "run"
    gang.train(recipe, workdir)
    return workdir


def test_a_run_that_is_cut_ends_with_the_same_bits(recipe: Path, whole: Path, tmp_path: Path) -> None:
    cut = tmp_path / "run"
    gang.break_off(recipe, cut, 21)
    assert saved_steps(str(cut)) == [8, 16]
    assert gang.train(recipe, cut) == gang.records(whole)
    gang.assert_same_model(cut, whole)


@pytest.mark.heavy
def test_one_of_two_processes_is_killed_and_one_goes_on(recipe: Path, tmp_path: Path) -> None:
    """Its losses are as of one process that was never cut."""
    flags = ["--config.phases.phase1.num_steps=150"]
    wanted, cut = gang.train(recipe, tmp_path / "whole", *flags), tmp_path / "run"
    job = gang.Gang(recipe, cut, 2, flags)
    job.until(lambda: saved_steps(str(cut)))
    job.send(1, signal.SIGKILL)
    assert job.end()[0][0] == PEER_LOST
    assert 0 < max(saved_steps(str(cut))) < 150
    gang.assert_same_losses(gang.train(recipe, cut, *flags), wanted, rtol=1e-4)
