"""What goes wrong on one process alone: the others hear of it, or do without; none waits for it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from bert_jax.checkpoints.restoring import BEST, saved_steps
from bert_jax.cluster.exit_codes import INTERRUPTED, PREEMPTED
from tests.tasks import toy_tasks
from tests.training import gang
from tests.training.gang import Gang, faulty

pytestmark = pytest.mark.heavy

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


def test_the_first_process_says_which_evaluation_is_the_best(tmp_path: Path) -> None:
    """Another may have read an older log, or reckoned in another order."""
    recipe = toy_tasks.write_toy(tmp_path, "tagging", export=False)
    run = tmp_path / "run"
    ended = Gang(recipe, run, 2, [f"--data={tmp_path}"], verb="finetune", program=faulty(OTHER_FIGURES)).end(
        seconds=300
    )
    assert [code for code, _ in ended] == [0, 0], ended
    assert saved_steps(str(run / BEST))


def test_a_save_may_take_its_time_before_they_go(tmp_path: Path) -> None:
    recipe = gang.make_inputs(tmp_path, num_steps=3000, every_steps=3000)
    job = Gang(recipe, tmp_path / "run", 2, program=("-c", SLOW_SAVE))
    job.reach(12)
    job.send(1, signal.SIGTERM)
    ended = job.end()
    assert [code for code, _ in ended] == [PREEMPTED, PREEMPTED], ended
    assert saved_steps(str(tmp_path / "run"))


def test_sigterm_before_the_first_step_of_a_resumed_run(tmp_path: Path) -> None:
    recipe, run = gang.make_inputs(tmp_path, num_steps=3000, every_steps=10), tmp_path / "run"
    job = Gang(recipe, run, 2)
    job.reach(12)
    job.send(0, signal.SIGTERM)
    job.end()
    before = saved_steps(str(run))[-1]
    ended = Gang(recipe, run, 2, program=faulty(TOLD_EARLY)).end(seconds=180)
    assert [code for code, _ in ended] == [PREEMPTED, PREEMPTED], ended
    assert saved_steps(str(run))[-1] == before + 1


@pytest.mark.parametrize("number", [0, 1])
def test_one_that_is_told_to_go_before_it_trains_ends_all(tmp_path: Path, number: int) -> None:
    program = faulty(TOLD_BEFORE_TRAINING, number)
    job = Gang(gang.make_inputs(tmp_path), tmp_path / "run", 2, program=program)
    ended = job.end(seconds=60)
    assert [code for code, _ in ended] == [PREEMPTED, PREEMPTED], ended


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
