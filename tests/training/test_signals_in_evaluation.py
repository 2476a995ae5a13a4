"""SIGTERM and Ctrl-C in an evaluation: left at once, made up by the run that goes on, logged once."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bert_jax.checkpoints.restoring import saved_steps
from bert_jax.cluster import exit_codes
from bert_jax.cluster.exit_codes import INTERRUPTED, PREEMPTED
from bert_jax.errors import Preempted
from bert_jax.training.evaluation import Evaluation
from tests.training import gang, line


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


def train(workdir: Path) -> int:
    """Run two steps, each with an evaluation; return the exit code of a command that does this."""
    try:
        line.train(workdir, num_steps=2, warmup=1, save_every=1000, log_every_steps=1, eval_every_steps=1)
    except Preempted as error:
        return exit_codes.of(error)
    return exit_codes.DONE


@pytest.mark.usefixtures("one_device")
def test_signals_in_an_evaluation(send: Callable[[signal.Signals, int], None], tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert train(whole) == exit_codes.DONE
    steps = [(record["step"], record["split"]) for record in gang.records(whole)]
    assert steps == [(0, "eval"), (1, "train"), (1, "eval"), (2, "train"), (2, "eval")]

    send(signal.SIGTERM, 2)  # at step 1
    assert train(cut) == PREEMPTED
    assert saved_steps(str(cut)) == [1]
    assert gang.records(cut) == gang.records(whole)[:2]
    assert json.loads((cut / "status.json").read_text())["state"] == "preempted"

    send(signal.SIGINT, 2)  # at the last step, once that at step 1 is made up
    assert train(cut) == INTERRUPTED
    assert saved_steps(str(cut)) == [1, 2]
    assert gang.records(cut) == gang.records(whole)[:4]
    assert json.loads((cut / "status.json").read_text())["state"] == "interrupted"

    assert train(cut) == exit_codes.DONE
    assert gang.records(cut) == gang.records(whole)
    gang.assert_same_model(cut, whole)
