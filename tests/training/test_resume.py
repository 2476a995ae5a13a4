"""A run that is killed or told to go, and started again, ends as one that was never cut, bit for bit."""

import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from bert_jax.checkpoints.restoring import read_params, saved_steps
from bert_jax.cluster.exit_codes import PREEMPTED
from bert_jax.workdir.run_record import read_run
from tests.training import gang
from tests.training.gang import Gang

STEPS, EVALUATED = 110, 50  # it must not be done before it is hit


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gang.make_inputs(tmp_path_factory.mktemp("inputs"), num_steps=STEPS)


@pytest.fixture(scope="module")
def whole(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never cut. It is saved at its end alone."""
    workdir = tmp_path_factory.mktemp("whole") / "run"
    gang.train(recipe, workdir, f"--config.checkpoints.every_steps={STEPS}")
    return workdir


def assert_whole(cut: Path, whole: Path) -> None:
    assert gang.records(cut) == gang.records(whole)
    gang.assert_same_model(cut, whole)


def test_killed_then_told_to_go_and_resumed(
    recipe: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor starts a killed run again, and passes SIGTERM on to the run."""
    cut = tmp_path / "run"
    gang.compile_once(monkeypatch, tmp_path / "compiled")
    job = Gang(recipe, cut, 1, ["--restarts=2"])
    job.until(lambda: saved_steps(str(cut)))
    listed = subprocess.run(["pgrep", "-P", str(job.processes[0].pid)], capture_output=True, text=True, check=True)
    os.kill(int(listed.stdout), signal.SIGKILL)
    cut_short = cut / f"status.json.{socket.gethostname()}.{int(listed.stdout)}.tmp"
    cut_short.write_text("{")
    job.reach(EVALUATED - 1)  # about an evaluation
    job.send(0, signal.SIGTERM)
    [(code, said)] = job.end()
    assert code == PREEMPTED, said
    assert "supervisor: ended by signal 9" in said
    assert "restart 1 of 2" in said
    assert "resumed at step" in said
    assert not cut_short.exists()

    gang.train(recipe, cut)
    assert_whole(cut, whole)
    _, facts, step = read_params(str(cut))
    begun = [restart["step"] for restart in facts["run"]["restarts"]]
    assert step == STEPS
    assert 10 <= begun[0] < EVALUATED - 1 <= begun[1] < STEPS
    gang.train(recipe, cut)  # there is nothing to go on with
    assert [restart["step"] for restart in read_run(str(cut))["restarts"]] == begun
    report = (cut / "report.html").read_text()
    assert f"restart at step {begun[0]}" in report
    assert "step None" not in report


@pytest.mark.heavy
def test_told_to_go_in_the_first_steps(recipe: Path, whole: Path, tmp_path: Path) -> None:
    job = Gang(recipe, tmp_path / "run", 1)
    job.reach(3)
    job.send(0, signal.SIGTERM)
    [(code, said)] = job.end()
    assert code == PREEMPTED, said
    gang.finish(recipe, tmp_path / "run", 1)
    assert_whole(tmp_path / "run", whole)
