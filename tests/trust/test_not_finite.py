"""NaN in the batches of real runs, one process and two: at the first step, in the warm-up, later, k in a row."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import jax
import numpy as np
import pytest

from bert_jax.checkpoints.restoring import read_params, saved_steps
from bert_jax.cluster.exit_codes import BAD_INPUT
from bert_jax.training.health import FILE
from bert_jax.workdir.run_record import read_run
from tests.training import gang
from tests.training.gang import Gang
from tests.trust.damage import generator, scaled

pytestmark = pytest.mark.trust

STEPS, SAVE, MOST = 60, 10, 4
# The weights of masked tokens of every row that one process holds are NaN at some steps. The others' rows are sound.
POISON = """
import sys
import numpy as np
from bert_jax.cli.main import run
from bert_jax.rows.loader import Batches

steps, process = {steps}, {process}
make = Batches.__getitem__

def poisoned(self, number):
    step, batch = make(self, number)
    if number in steps and process in (None, *sys.argv):
        batch["masked_weights"] = np.full_like(batch["masked_weights"], np.nan)
    return step, batch

Batches.__getitem__ = poisoned
sys.exit(run())
"""
FLAGS = [f"--config.training.max_skipped_in_a_row={MOST}"]


def poisoned(recipe: Path, workdir: Path, count: int, steps: list[int]) -> Gang:
    """A job whose process 1, or only one, holds NaN."""
    program = POISON.format(steps=steps, process=repr("--process_id=1") if count > 1 else None)
    return Gang(recipe, workdir, count, FLAGS, program=("-c", program))


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cadence = {"log_every_steps": 3, "eval_every_steps": 20, "eval_rows": 20}
    return gang.make_inputs(tmp_path_factory.mktemp("inputs"), num_steps=STEPS, every_steps=SAVE, training=cadence)


def assert_finite(workdir: Path) -> None:
    """Every step that is kept."""
    for step in saved_steps(str(workdir)):
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(read_params(str(workdir), step)[0]))


@pytest.mark.parametrize("count", [1, 2])
def test_steps_are_skipped_named_and_found_again(recipe: Path, tmp_path: Path, count: int) -> None:
    """At the first step, in the warm-up (4 steps), before a save, a whole window, and steps that chance names; then the
    same job, killed now and then, ends bit for bit alike."""
    rng = generator(f"not finite, {count} processes")
    # Never so many in a row that the run would end.
    bad = sorted({0, 2, 19, 30, 31, 32, *rng.sample(range(34, STEPS - 1, 2), 5)})
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    ended = poisoned(recipe, whole, count, bad).end()
    assert [code for code, _ in ended] == [0] * count, ended
    assert "alarm at step 3: the loss or gradient of steps 0 and 2 is not finite" in ended[0][1]
    assert read_run(str(whole))["skipped_steps"] == bad
    assert read_params(str(whole))[1]["run"]["skipped_steps"] == bad
    assert_finite(whole)
    logged = {r["step"]: r for r in gang.records(whole) if r["split"] == "train"}
    assert sum(r.get("skipped_steps", 0) for r in logged.values()) == len(bad)
    assert [step for step, r in logged.items() if r["mlm_loss"] is None] == [33]

    for _ in range(scaled(3)):
        job = poisoned(recipe, cut, count, bad)
        job.reach(max((r["step"] for r in gang.records(cut)), default=0) + rng.randrange(3, 15, 3))
        job.send(rng.randrange(count), signal.SIGKILL)
        job.end()
    ended = poisoned(recipe, cut, count, bad).end()
    assert [code for code, _ in ended] == [0] * count, ended
    assert read_run(str(cut))["skipped_steps"] == bad
    assert gang.records(cut) == gang.records(whole)
    gang.assert_same_model(cut, whole)


@pytest.mark.parametrize("count", [1, 2])
def test_too_many_in_a_row_end_all_processes_and_are_repeated(recipe: Path, tmp_path: Path, count: int) -> None:
    bad, run = [5, 6, 7, 23, 24, 25, 26, 27], tmp_path / "run"
    found = []
    for _ in range(2):
        ended = poisoned(recipe, run, count, bad).end()
        assert [code for code, _ in ended] == [BAD_INPUT] * count, ended
        assert f"{MOST} steps in a row, from step 23 on, not finite; {FILE} names their rows" in ended[0][1]
        assert "step 20 is the newest verified checkpoint before that" in ended[0][1]
        assert saved_steps(str(run)) == [10, 20]
        found.append(json.loads((run / FILE).read_text()))
        assert found[-1].pop("command").startswith("bert-jax pretrain")  # several choose another port each time
        (run / FILE).unlink()
    assert found[0] == found[1]
    assert found[0]["verified_step"] == 20
    assert [step["step"] for step in found[0]["steps"]] == bad[3:7]
    # The same rows hold nothing that is not finite: without the poison the run goes on from there.
    ended = Gang(recipe, run, count, FLAGS).end()
    assert [code for code, _ in ended] == [0] * count, ended
    assert read_run(str(run))["skipped_steps"] == bad[:3]
    assert_finite(run)
