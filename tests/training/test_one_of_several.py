"""What goes wrong on one process alone: the others hear of it, or do without; none waits for it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from bert_jax.checkpoints.restoring import BEST, saved_steps
from bert_jax.cluster.exit_codes import BAD_INPUT, INTERRUPTED, PREEMPTED
from tests.tasks import toy_tasks
from tests.training import gang
from tests.training.gang import Gang

FAULTY = """
import sys
from bert_jax.cli.main import run
if "--process_id=1" in sys.argv:
    FAULT
sys.exit(run())
"""
LOST_FILE = """
    from bert_jax.rows.loader import Batches
    make = Batches.__getitem__
    def broken(self, step):
        if step == 14:
            raise FileNotFoundError(2, "No such file or directory", "/mnt/corpus/train-00001")
        return make(self, step)
    Batches.__getitem__ = broken
"""
UNREAD_STEP = """
    from bert_jax.storage import files
    read = files.sha256
    def broken(path, *part):
        if "/checkpoints/STEP/" in str(path):
            raise OSError(5, "Input/output error", str(path))
        return read(path, *part)
    files.sha256 = broken
"""

TOLD_EARLY = """
    import os, signal
    from bert_jax.cluster import distributed
    join = distributed.join
    def joined(*arguments):
        join(*arguments)
        os.kill(os.getpid(), signal.SIGTERM)
    distributed.join = joined
"""
TOLD_BEFORE_TRAINING = """
    import os, signal
    from bert_jax.runs.inputs import Inputs
    open_vocabulary = Inputs.open_vocabulary
    def told(*arguments):
        os.kill(os.getpid(), signal.SIGUSR1)
        return open_vocabulary(*arguments)
    Inputs.open_vocabulary = told
"""
OTHER_FIGURES = """
    from bert_jax.training.selection import Selection
    see = Selection.see
    def lagging(self, step, metrics):
        see(self, step, metrics)
        return False
    Selection.see = lagging
"""
SLOW_SAVE = """
import sys, time
from bert_jax.cli.main import run
from bert_jax.checkpoints.saving import Checkpoints
wait = Checkpoints.wait
def slow(self):
    time.sleep(15)
    wait(self)
Checkpoints.wait = slow
sys.exit(run())
"""


def test_an_error_of_one_ends_both_and_a_step_that_one_cannot_read_is_read_by_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of the system is one line and code 2, as of a process that is alone, and told at once."""
    recipe, run = gang.make_inputs(tmp_path, num_steps=20, every_steps=4), tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(gang, "HEARTBEAT_SECONDS", 60)
        job = Gang(recipe, run, 2, program=("-c", FAULTY.replace("    FAULT", LOST_FILE)))
    (code, said), (own, own_output) = job.end()
    assert (code, own) == (BAD_INPUT, BAD_INPUT), (said, own_output)
    assert "has failed: /mnt/corpus/train-00001: no such file or directory; name another path" in said
    assert "\nerror: /mnt/corpus/train-00001: no such file or directory; name another path" in own_output
    assert "Traceback" not in own_output

    # Its read fails before that of the other comes to an end; then both take the step before.
    before, newest = saved_steps(str(run))[-2:]
    job = Gang(recipe, run, 2, program=("-c", FAULTY.replace("    FAULT", UNREAD_STEP.replace("STEP", str(newest)))))
    ended = job.end(seconds=180)
    assert [code for code, _ in ended] == [0, 0], ended
    assert f"step {newest} is damaged: " in ended[0][1]  # as the other has found
    assert f" cannot be read (Input/output error); set aside as {run}/damaged-step-{newest}" in ended[0][1]
    assert f"resumed at step {before}" in ended[0][1]
    assert saved_steps(str(run))[-1] == 20


@pytest.mark.heavy
def test_the_first_process_says_which_evaluation_is_the_best(tmp_path: Path) -> None:
    """Another may have read an older log, or reckoned in another order."""
    recipe = toy_tasks.write_toy(tmp_path, "tagging", export=False)
    program, run = FAULTY.replace("    FAULT", OTHER_FIGURES), tmp_path / "run"
    ended = Gang(recipe, run, 2, [f"--data={tmp_path}"], verb="finetune", program=("-c", program)).end(seconds=300)
    assert [code for code, _ in ended] == [0, 0], ended
    assert saved_steps(str(run / BEST))


@pytest.mark.heavy
def test_a_save_may_take_its_time_before_they_go(tmp_path: Path) -> None:
    recipe = gang.make_inputs(tmp_path, num_steps=3000, every_steps=3000)
    job = Gang(recipe, tmp_path / "run", 2, program=("-c", SLOW_SAVE))
    job.reach(12)
    job.send(1, signal.SIGTERM)
    ended = job.end()
    assert [code for code, _ in ended] == [PREEMPTED, PREEMPTED], ended
    assert saved_steps(str(tmp_path / "run"))


@pytest.mark.heavy
def test_sigterm_before_the_first_step_of_a_resumed_run(tmp_path: Path) -> None:
    recipe, run = gang.make_inputs(tmp_path, num_steps=3000, every_steps=10), tmp_path / "run"
    job = Gang(recipe, run, 2)
    job.reach(12)
    job.send(0, signal.SIGTERM)
    job.end()
    before = saved_steps(str(run))[-1]
    ended = Gang(recipe, run, 2, program=("-c", FAULTY.replace("    FAULT", TOLD_EARLY))).end(seconds=180)
    assert [code for code, _ in ended] == [PREEMPTED, PREEMPTED], ended
    assert saved_steps(str(run))[-1] == before + 1


@pytest.mark.heavy
@pytest.mark.parametrize("number", [0, 1])
def test_one_that_is_told_to_go_before_it_trains_ends_all(tmp_path: Path, number: int) -> None:
    program = FAULTY.replace("    FAULT", TOLD_BEFORE_TRAINING).replace("=1", f"={number}")
    job = Gang(gang.make_inputs(tmp_path), tmp_path / "run", 2, program=("-c", program))
    ended = job.end(seconds=60)
    assert [code for code, _ in ended] == [PREEMPTED, PREEMPTED], ended


@pytest.mark.heavy
@pytest.mark.parametrize("number", [0, 1])
def test_ctrl_c_to_one_saves_the_same_step_on_all(tmp_path: Path, number: int) -> None:
    """And all leave with 130: whoever supervises the others starts none of them again."""
    run = tmp_path / "run"
    job = Gang(gang.make_inputs(tmp_path, num_steps=3000, every_steps=3000), run, 2)
    job.reach(12)
    job.send(number, signal.SIGINT)
    ended = job.end(seconds=60)
    assert [code for code, _ in ended] == [INTERRUPTED, INTERRUPTED], ended
    newest = saved_steps(str(run))[-1]
    assert all(f"told to end: step {newest} is saved" in said for _, said in ended)
    assert "Traceback" not in ended[0][1] + ended[1][1]
