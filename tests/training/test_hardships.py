"""What machines do to a job of real processes: signals at bad moments, a process that is stuck, disks that fail."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bert_jax.checkpoints.restoring import saved_steps
from bert_jax.cluster.exit_codes import BAD_INPUT, PEER_LOST, PREEMPTED
from tests import hardships, toy
from tests.training import gang
from tests.training.gang import Gang

pytestmark = pytest.mark.heavy
EVERY = 3  # steps from evaluation to evaluation
STUCK = """
import signal, sys, time
from bert_jax.cli.main import run
from bert_jax.cluster.watchdog import Watchdog

def stick(*_):
    tell = Watchdog.at

    def at(self, step, state):
        while state == "reading":  # before it says so: to read may take its time, a step may not
            time.sleep(1)
        tell(self, step, state)

    Watchdog.at = at

signal.signal(signal.SIGUSR2, stick)
sys.exit(run())
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A save every step and an evaluation every third: there is always one to hit."""
    cadence = {"log_every_steps": 1, "eval_every_steps": EVERY, "eval_rows": 600}
    return gang.make_inputs(tmp_path_factory.mktemp("inputs"), num_steps=60, every_steps=1, training=cadence)


@pytest.fixture(scope="module")
def whole(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Runs that were never cut, by the number of processes."""
    folder = tmp_path_factory.mktemp("whole")
    for count in (1, 2):
        gang.finish(recipe, folder / str(count), count)
    return {count: folder / str(count) for count in (1, 2)}


def is_saving(workdir: Path) -> bool:
    return any("tmp" in path.name for path in (workdir / "checkpoints").glob("*"))


def is_evaluating(workdir: Path) -> bool:
    """The step before an evaluation is logged, the evaluation is not."""
    last = gang.records(workdir)[-1]
    return last["split"] == "train" and last["step"] % EVERY == 0


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("moment", [is_saving, is_evaluating])
def test_sigterm_at_a_bad_moment(
    recipe: Path, whole: dict[int, Path], tmp_path: Path, moment: Callable[[Path], bool], count: int
) -> None:
    run = tmp_path / "run"
    job = Gang(recipe, run, count)
    job.reach(7)
    job.until(lambda: moment(run))
    job.send(count - 1, signal.SIGTERM)
    ended = job.end()
    assert [code for code, _ in ended] == [PREEMPTED] * count, ended
    assert not is_saving(run)
    newest = saved_steps(str(run))[-1]
    assert f"step {newest} is saved" in ended[0][1]
    assert newest == gang.records(run)[-1]["step"]
    assert gang.finish(recipe, run, count) == gang.records(whole[count])
    gang.assert_same_model(run, whole[count])


def test_sigterm_to_all_processes_of_a_run(recipe: Path, whole: dict[int, Path], tmp_path: Path) -> None:
    """As SLURM sends it: those that make batches hear it too, and make them until the step is saved."""
    run, flags = tmp_path / "run", ["--config.loader.num_workers=2"]
    job = Gang(recipe, run, 1, flags, own_groups=True)
    job.reach(7)
    os.killpg(job.processes[0].pid, signal.SIGTERM)
    [(code, said)] = job.end()
    assert code == PREEMPTED, said
    assert gang.finish(recipe, run, 1, *flags) == gang.records(whole[1])


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1])
def test_other_signals_to_one_of_two_save_too(
    recipe: Path, whole: dict[int, Path], tmp_path: Path, number: signal.Signals
) -> None:
    job = Gang(recipe, tmp_path / "run", 2)
    job.reach(7)
    job.send(1, number)
    ended = job.end()
    assert [code for code, _ in ended] == [PREEMPTED] * 2, ended
    assert gang.finish(recipe, tmp_path / "run", 2) == gang.records(whole[2])


def test_a_closed_terminal_saves(recipe: Path, whole: dict[int, Path], tmp_path: Path) -> None:
    """Its end sends SIGHUP to every process in it, and what is written to it fails."""
    run, flags = tmp_path / "run", ["--config.loader.num_workers=2"]
    command = [sys.executable, "-m", "bert_jax", "pretrain", f"--config={recipe}", f"--workdir={run}", *flags]
    terminal, inside = os.openpty()
    opened = ["sh", "-c", f'exec "$@" <{os.ttyname(inside)} >{os.ttyname(inside)} 2>&1', "sh", *command]
    job = subprocess.Popen(opened, env=toy.environment(), start_new_session=True)
    shown = os.read(terminal, 4096)  # until then the terminal has no other end than ``inside``
    os.close(inside)
    while not re.search(rb" ([7-9]|[1-4]\d)/60", shown):
        shown += os.read(terminal, 4096)
    os.close(terminal)
    assert job.wait(300) == PREEMPTED
    assert saved_steps(str(run))[-1] == gang.records(run)[-1]["step"]
    assert gang.finish(recipe, run, 1, *flags) == gang.records(whole[1])


def test_a_run_without_standard_streams(recipe: Path, whole: dict[int, Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-m", "bert_jax", "pretrain", f"--config={recipe}", f"--workdir={run}"]
    done = subprocess.run(["sh", "-c", '"$@" <&- >&- 2>&-', "sh", *command], env=toy.environment(), check=False)
    assert done.returncode == 0
    assert gang.records(run) == gang.records(whole[1])


@pytest.mark.parametrize("stuck", [0, 1])
def test_a_process_that_is_stuck_ends_all(tmp_path: Path, stuck: int) -> None:
    """It lives and says so, but it does nothing any more."""
    recipe = gang.make_inputs(tmp_path, num_steps=3000, every_steps=1000)
    job = Gang(recipe, tmp_path / "run", 2, program=("-c", STUCK))
    job.reach(7)
    job.until(lambda: '"training"' in (tmp_path / "run" / "status.json").read_text())
    job.send(stuck, signal.SIGUSR2)
    begun = time.monotonic()
    ended = job.end()
    took = time.monotonic() - begun
    assert [code for code, _ in ended] == [PEER_LOST, PEER_LOST], ended
    assert f"error: process {stuck} on " in ended[1 - stuck][1]
    assert "has stood still for" in ended[1 - stuck][1]
    assert took < gang.HEARTBEAT_SECONDS + 5, ended


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with hardships.small_disk(tmp_path / "disk", 40 * hardships.MIB):
        yield tmp_path / "disk"


@pytest.mark.parametrize("count", [1, 2])
def test_a_disk_that_fills(recipe: Path, whole: dict[int, Path], disk: Path, count: int) -> None:
    job = Gang(recipe, disk / "run", count)
    job.reach(7)
    with (disk / "filler").open("wb", buffering=0) as filler:
        while any(process.poll() is None for process in job.processes):  # steps that are pruned make room again
            try:
                filler.write(b"0" * 4096)
            except OSError:
                time.sleep(0.01)
    ended = job.end()
    assert [code for code, _ in ended] == [BAD_INPUT] * count, ended
    assert "No space left on device" in ended[0][1]
    assert "run the same command to go on from the newest" in ended[0][1]
    (disk / "filler").unlink()
    assert gang.finish(recipe, disk / "run", count) == gang.records(whole[count])


@pytest.mark.parametrize("count", [1, 2])
def test_a_workdir_that_turns_read_only(recipe: Path, whole: dict[int, Path], tmp_path: Path, count: int) -> None:
    run = tmp_path / "run"
    job = Gang(recipe, run, count)
    job.reach(7)
    with hardships.locked(run / "checkpoints"):
        ended = job.end()
    assert [code for code, _ in ended] == [BAD_INPUT] * count, ended
    assert "cannot save into" in ended[0][1]
    assert gang.finish(recipe, run, count) == gang.records(whole[count])


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("damage", ["cut", "unfinished"])
def test_a_newest_step_that_is_half_written(
    recipe: Path, whole: dict[int, Path], tmp_path: Path, damage: str, count: int
) -> None:
    run = tmp_path / "run"
    job = Gang(recipe, run, count)
    job.reach(7)
    job.send(0, signal.SIGTERM)
    job.end()
    newest = saved_steps(str(run))[-1]
    step = run / "checkpoints" / str(newest)
    if damage == "cut":
        for part in step.glob("state/ocdbt.process_*/d/*"):
            os.truncate(part, 10)
    else:
        step.rename(step.with_name(f"{newest}.orbax-checkpoint-tmp"))
    job = Gang(recipe, run, count)
    ended = job.end()
    assert [code for code, _ in ended] == [0] * count, ended
    assert f"resumed at step {newest - 1}" in ended[0][1]
    assert (f"set aside as {run}/damaged-step-{newest}" in ended[0][1]) == (damage == "cut")
    assert gang.records(run) == gang.records(whole[count])
    gang.assert_same_model(run, whole[count])
