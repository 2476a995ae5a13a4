"""SIGTERM and Ctrl-C in an evaluation: left at once, made up by the run that goes on, logged once."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bert_jax.checkpoints.restoring import saved_steps
from bert_jax.cli.main import run
from bert_jax.cluster.exit_codes import DONE, INTERRUPTED, PREEMPTED
from bert_jax.training.evaluation import Evaluation
from tests import toy
from tests.training import gang

STEPS = 2  # each with an evaluation


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    config = toy.recipe(
        toy.write_text(tmp_path / "text.txt"),
        phases={"phase1": {"num_steps": STEPS, "batch_size": 8, "max_length": 32}},
        schedule={"warmup_steps": 1},
        training={"log_every_steps": 1, "eval_every_steps": 1, "loggers": ()},
        examples=(),
        export=False,
    )
    return ["pretrain", f"--config={toy.write_recipe(tmp_path / 'recipe.json', config)}"]


@pytest.fixture
def send(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[signal.Signals, int], None]]:
    """Tells the process to end in the n-th evaluation from now, after its first batch."""
    waiting: list[Any] = []
    batches = Evaluation._batches

    def counted(self: Evaluation, part: str) -> Iterator[Any]:
        for number, batch in enumerate(batches(self, part)):
            if number == 1 and waiting:
                waiting[0][1] -= 1
                if waiting[0][1] == 0:
                    signal.raise_signal(waiting.pop()[0])
            yield batch

    monkeypatch.setattr(Evaluation, "_batches", counted)
    yield lambda number, count: waiting.append([number, count])
    assert not waiting


def test_signals_in_an_evaluation(
    command: list[str], send: Callable[[signal.Signals, int], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with toy.one_device():
        whole, cut = tmp_path / "whole", tmp_path / "cut"
        assert run([*command, f"--workdir={whole}"]) == DONE
        steps = [(record["step"], record["split"]) for record in gang.records(whole)]
        assert steps == [(0, "eval"), (1, "train"), (1, "eval"), (2, "train"), (2, "eval")]

        send(signal.SIGTERM, 2)  # at step 1
        assert run([*command, f"--workdir={cut}"]) == PREEMPTED
        assert saved_steps(str(cut)) == [1]
        assert gang.records(cut) == gang.records(whole)[:2]
        assert json.loads((cut / "status.json").read_text())["state"] == "preempted"

        send(signal.SIGINT, 2)  # at the last step, once that at step 1 is made up
        assert run([*command, f"--workdir={cut}"]) == INTERRUPTED
        assert saved_steps(str(cut)) == [1, 2]
        assert gang.records(cut) == gang.records(whole)[:4]
        assert json.loads((cut / "status.json").read_text())["state"] == "interrupted"
        assert "told to end: step 2 is saved, and the same command goes on from there" in capsys.readouterr().err

        assert run([*command, f"--workdir={cut}"]) == DONE
        assert gang.records(cut) == gang.records(whole)
        gang.assert_same_model(cut, whole)
