"""A step that is not finite teaches nothing and breaks nothing; what is broken is not saved."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.checkpoints.restoring import read_params, saved_steps
from bert_jax.errors import RepeatingError
from bert_jax.reporting import status
from bert_jax.reporting.run_log import read_records
from bert_jax.training import mesh as meshes
from bert_jax.training.health import FILE, stretches
from bert_jax.training.mesh import MeshConfig
from bert_jax.training.optimizers import adamw
from bert_jax.training.schedules import linear
from bert_jax.training.selection import Selection, SelectionConfig
from bert_jax.training.state import LAST, InitialState, SkippedSteps, TrainState
from bert_jax.training.step import jit_train_step, make_gradients, make_train_step
from bert_jax.workdir.run_record import read_run
from tests.training.gang import TIMED
from tests.training.line import BATCH, Line, Points, rows_of, train

LAYOUTS = {  # devices, mesh, micro-batches
    "one": (1, MeshConfig(), 1),
    "accumulated": (1, MeshConfig(), 4),
    "data": (8, MeshConfig(), 1),
    "fsdp": (8, MeshConfig(data=1, fsdp=8), 1),
    "sharded update": (8, MeshConfig(), 1),
}


def states(layout: str, several: Sequence[Points], num_steps: int) -> list[list[TrainState]]:
    """The state after each step, on each of ``several`` points."""
    devices, mesh_config, micro_batches = LAYOUTS[layout]
    task, tx = Line(), adamw.Optimizer(bias_correction="standard").make()
    mesh = meshes.make_mesh(mesh_config, jax.devices()[:devices])
    schedule = linear.Schedule(0.05, 2).make(20)
    state, frozen = InitialState(task, tx, mesh, mesh_config.weight_update).make(0)
    gradients = make_gradients(task, micro_batches, state.params)
    step = jit_train_step(make_train_step(task, tx, schedule, 0, gradients), state)
    fresh, places, found = jax.device_get(state), jax.tree.map(lambda x: x.sharding, state), []
    for points in several:
        state = jax.device_put(fresh, places)
        found.append([])
        for number in range(num_steps):
            rows = np.arange(BATCH) + number * BATCH
            batch = points.rows(np.zeros_like(rows), rows)
            state = step(state, frozen, meshes.to_devices(batch, mesh))
            found[-1].append(jax.device_get(state))
    return found


def assert_same(found: Any, expected: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_step_that_is_not_finite_changes_nothing_but_the_clock(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meshes, "SPLIT", BATCH if layout == "sharded update" else 1000)
    values = (np.nan, np.inf, 1e30)  # the square of the last one is infinite
    for found in states(layout, [Points(rows_of(0, 2, 3), value) for value in values], 5):
        assert [int(state.step) for state in found] == [1, 2, 3, 4, 5]
        fresh, first, second, third, last = found
        assert all(not leaf.any() for leaf in jax.tree.leaves(fresh.opt_state))
        assert fresh.metrics["loss"].count == 0
        for skipped in (second, third):
            assert_same((skipped.params, skipped.opt_state), (first.params, first.opt_state))
        assert last.opt_state[1].count == 2  # Adam's clock is of updates
        assert np.abs(last.params["dense"]["kernel"] - first.params["dense"]["kernel"]).max() > 1e-3
        assert last.skipped.since(0) == [0, 2, 3]
        assert last.skipped.since(2) == [3]
        # What was skipped is in no metric; the schedule went on.
        assert (last.metrics["loss"].count, last.metrics["learning_rate"].count) == (2, 5)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(last))


def test_the_skipped_steps_are_known_however_many() -> None:
    state = SkippedSteps.none()
    add = jax.jit(SkippedSteps.add)
    steps = [step for step in range(3 * LAST) if step % 3]
    for step in range(3 * LAST):
        state = add(state, jax.numpy.asarray(step), jax.numpy.asarray(step % 3 > 0))
    assert jax.device_get(state).since(len(steps) - LAST) == steps[-LAST:]
    assert stretches(np.zeros(6), np.array([0, 2, 3, 7, 8, 9])) == [[0, 0, 0], [0, 2, 3], [0, 7, 9]]
    assert stretches(np.array([0, 0, 0, 1, 1]), np.array([7, 8, 9, 0, 1])) == [[0, 7, 9], [1, 0, 1]]


def test_a_run_goes_on_after_steps_that_are_not_finite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """At the first step, in the warm-up, a whole window, and the step before a save. A resume finds those that were
    skipped after the step that it goes on from again, and each stands once."""
    bad, run = [0, 3, 20, 21, 29], tmp_path / "run"
    train(run, Points(rows_of(*bad)))
    assert "alarm at step 22: the loss or gradient of steps 20 and 21 is not finite" in capsys.readouterr().err
    found, params = read_records(run), read_params(str(run))[0]
    assert {r["step"]: r["skipped_steps"] for r in found if "skipped_steps" in r} == {2: 1, 4: 1, 22: 2, 30: 1}
    assert [r["step"] for r in found if r["squared_error"] is None] == [22]
    assert all(r["squared_error"] < 10 for r in found if r["step"] != 22)
    assert saved_steps(str(run)) == [10, 20, 40]  # at 30 nothing had come of the parameters
    for when in ("whole", "resumed"):
        assert read_run(str(run))["skipped_steps"] == read_params(str(run))[1]["run"]["skipped_steps"] == bad
        assert [alarm["step"] for alarm in status.read(run)["alarms"]] == [2, 4, 22, 30]
        described = status.describe(run)
        assert "finished, with alarms" in described
        assert (
            "alarm    at step 30: the loss or gradient of step 29 is not finite: nothing was learned from it"
            in described
        )
        assert_same(read_params(str(run))[0], params)
        assert untimed(read_records(run)) == untimed(found)
        if when == "whole":
            for later in (20, 40):
                (run / "checkpoints" / str(later)).rename(tmp_path / str(later))
            train(run, Points(rows_of(*bad)))


def untimed(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in record.items() if name not in TIMED} for record in records]


def test_too_many_in_a_row_end_the_run_and_the_same_command_repeats_it(tmp_path: Path) -> None:
    bad, run, ends = [4, 13, 14, 15, 16, 17], tmp_path / "run", []
    for _ in range(2):
        with pytest.raises(
            RepeatingError, match="4 steps in a row, from step 13 on, not finite; not_finite.js"
        ) as error:
            train(run, Points(rows_of(*bad)), max_skipped_in_a_row=4)
        assert "step 10 is the newest verified checkpoint before that" in str(error.value)
        ends.append(json.loads((run / FILE).read_text()))
        (run / FILE).unlink()
        assert saved_steps(str(run)) == [10]
        assert read_run(str(run))["skipped_steps"] == bad
    assert ends[0] == ends[1]
    assert ends[0]["verified_step"] == 10
    named = [(step["step"], step["phase"], step["rows"]) for step in ends[0]["steps"]]
    assert named == [(s, "phase1", [[0, s * BATCH, s * BATCH + BATCH - 1]]) for s in (13, 14, 15, 16)]


def test_what_is_not_finite_is_not_saved(tmp_path: Path) -> None:
    """An update overflows though loss and gradient do not: the step does not see it, the save after it does."""
    with pytest.raises(
        RepeatingError, match="the parameters are not finite after 1 steps; there is no verified step before that"
    ):
        train(tmp_path / "run", peak=3e38, warmup=0, save_every=1)
    assert saved_steps(str(tmp_path / "run")) == []


def test_of_equal_scores_the_last_is_the_best_and_patience_ends() -> None:
    selection = Selection(SelectionConfig("score", patience=3), [{"step": 10, "score": 0.0}])
    seen = [selection.see(step, {"score": score}) for step, score in ((20, 0.0), (30, 0.5), (40, 0.5), (50, 0.4))]
    assert seen == [True, True, True, False]
    assert selection.best == (40, 0.5)
    assert not selection.exhausted
    assert selection.see(60, {"score": 0.5})
    assert selection.exhausted  # 40, 50 and 60 have brought no better score


def test_a_score_that_is_not_finite_is_never_the_best() -> None:
    selection = Selection(SelectionConfig("loss", patience=3), [{"step": 10, "loss": None}])  # as the log has it
    assert not selection.see(20, {"loss": np.nan})
    assert selection.best is None
    assert selection.see(30, {"loss": 1.0})
    assert not selection.exhausted
