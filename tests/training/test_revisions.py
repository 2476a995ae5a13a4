"""A run saves and keeps the steps that ``config.checkpoints.at`` names, whatever happens to it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.checkpoints.restoring import read_params, saved_steps
from bert_jax.checkpoints.saving import CheckpointConfig
from bert_jax.errors import UserError
from bert_jax.reporting.run_log import read_records
from bert_jax.training.loop import _Trainer
from tests.training import line

NAMED = {"step0": 0, "step3": 3, "step21": 21, "step30": 30}


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs save every 10 steps and keep the newest, besides the named steps."""
    make = line.experiment
    changed: dict[str, Any] = {"checkpoints": CheckpointConfig(every_steps=10, keep=1), "revisions": NAMED}
    monkeypatch.setattr(line, "experiment", lambda **changes: dataclasses.replace(make(**changes), **changed))


def untimed(run: Path) -> list[tuple[Any, ...]]:
    return [(record["step"], record["split"], record["squared_error"]) for record in read_records(run)]


@pytest.mark.usefixtures("named")
def test_a_run_that_is_cut_has_all_named_steps_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut before the first save after step 0, and later."""
    whole, step = tmp_path / "whole", _Trainer._step
    line.train(whole)
    assert saved_steps(str(whole)) == [*NAMED.values(), 40]
    untrained = read_params(str(whole), 0)[0]["dense"]["kernel"]
    assert np.abs(untrained - read_params(str(whole), 3)[0]["dense"]["kernel"]).max() > 1e-3
    for last, left in ((1, [0]), (25, [0, 3, 21])):

        def broken(self: _Trainer, number: int, *rest: Any, last: int = last) -> None:
            if number == last:
                raise UserError("cut")
            step(self, number, *rest)

        cut = tmp_path / str(last)
        with monkeypatch.context() as patch:
            patch.setattr(_Trainer, "_step", broken)
            with pytest.raises(UserError, match="cut"):
                line.train(cut)
        assert saved_steps(str(cut)) == left
        line.train(cut)
        assert saved_steps(str(cut)) == [*NAMED.values(), 40]
        assert untimed(cut) == untimed(whole)  # the evaluation of step 0 too, once
        for number in saved_steps(str(cut)):
            found, wanted = (read_params(str(run), number)[0] for run in (cut, whole))
            jax.tree.map(np.testing.assert_array_equal, found, wanted)


@pytest.mark.usefixtures("named")
def test_a_named_step_that_was_skipped_is_saved_all_the_same(tmp_path: Path) -> None:
    """Its parameters are those of the step before, and no error may call them sound."""
    line.train(tmp_path / "run", line.Points(line.rows_of(19, 29)))
    assert saved_steps(str(tmp_path / "run")) == [*NAMED.values(), 40]


def test_words_are_counted_in_pretraining_alone() -> None:
    def with_(*at: int | str) -> Any:
        return dataclasses.replace(line.experiment(), checkpoints=CheckpointConfig(at=at))

    task: Any = line.Line()
    with pytest.raises(UserError, match="the same step, 5"):
        with_("5", "320 tokens", "1k words").check()
    given = with_("5", "640 tokens", "1k words")
    given.check()
    with pytest.raises(UserError, match="counts words, which only a pretraining has; give steps or tokens"):
        given.in_steps(task)
    found = given.in_steps(task, lambda phase: 25_000.0).revisions  # 4,000 rows, 8 a step: 50 words
    assert found == {"step5": 5, "640_tokens": 10, "1k_words": 20}
