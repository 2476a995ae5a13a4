"""Finite losses that show that a run has gone wrong are reported, false alarms are not; a run goes back on request."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.checkpoints.restoring import read_params
from bert_jax.reporting import status
from bert_jax.reporting.alarms import ENOUGH, Alarms
from bert_jax.reporting.report import write_report
from bert_jax.reporting.run_log import read_records
from bert_jax.rows.phases import Phase, Phases
from bert_jax.task import Bucket
from bert_jax.workdir.run_record import read_run
from tests.training.line import BATCH, Points, train

UNIGRAM = {"unigram_cross_entropy": 6.6}


def alarms(seen: list[dict[str, Any]] | None = None, warmup: int = 100, num_steps: int = 2000) -> Alarms:
    return Alarms(seen or [], UNIGRAM, warmup, num_steps)


def falling(count: int, seed: int = 0, noise: float = 0.05) -> list[float]:
    """Return the losses of a pretraining run, window by window."""
    rng = random.Random(seed)
    return [2.5 + 8.2 * 0.98**number + rng.gauss(0, noise) for number in range(count)]


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.5])
def test_a_spike_is_reported_once_and_noise_is_not(noise: float) -> None:
    found = alarms()
    losses = [*falling(200, noise=noise), 9.0, 10.0, *falling(220, noise=noise)[200:], 9.5]
    spikes = {number: text for number, loss in enumerate(losses) if (text := found.train({"loss": loss}))}
    assert list(spikes) == [200, 222]
    assert "the loss is 9.000, after 2." in spikes[200]


def test_the_sum_of_all_terms_is_judged() -> None:
    found = alarms()
    for loss in falling(100):
        found.train({"loss": 0.5, "total_loss": loss})
    assert found.train({"loss": 9.0, "total_loss": falling(100)[-1]}) is None
    assert found.train({"loss": 0.5, "total_loss": 9.0})


def test_what_is_no_spike() -> None:
    converged = [0.7 * 0.8**number for number in range(60)]  # of a fine-tuning, with a hard batch now and then
    for losses in (
        [*converged, 0.15, *converged[-20:], 0.2],
        [*falling(ENOUGH - 1), 100.0],  # too early to say
        [*falling(100), *[None] * 3, float("nan"), falling(100)[-1]],
    ):
        found = alarms()
        assert [found.train({"loss": loss}) for loss in losses] == [None] * len(losses)
    found = alarms()
    for loss in falling(100):
        found.train({"loss": loss, "phase": "phase1"})
    assert found.train({"loss": 9.0, "phase": "phase2"}) is None  # other rows


def test_the_record_of_a_run_is_enough_to_go_on() -> None:
    losses = [*falling(100), 9.0]
    seen = [{"step": number, "split": "train", "loss": loss} for number, loss in enumerate(losses)]
    assert alarms(seen[:-1]).train({"loss": 9.0})
    assert alarms(seen).train({"loss": 9.0}) is None  # reported before


def judged(*losses: float | None, every: int = 200, **run: Any) -> dict[int, str]:
    """Return step -> text of the alarms about held-out losses."""
    found = alarms(**run)
    texts = {n * every: found.evaluation(n * every, {"mlm_loss": loss}) for n, loss in enumerate(losses)}
    return {step: text for step, text in texts.items() if text}


def test_held_out_losses_over_the_baseline() -> None:
    assert judged(9.3, 7.2, 6.5, 6.2, 5.1) == {}
    assert judged(9.3, 7.2, 7.0, 6.8) == {}  # it may still learn
    [(step, text)] = judged(9.3, 7.2, 2716.0, 2700.0).items()
    assert (step, text) == (
        400,
        "the held-out mlm loss is 2,716.000, worse than the unigram's 6.600 and the untrained model's 9.300: it has "
        "diverged",
    )
    assert judged(9.3, 6.2, 6.9, 6.9, 6.1, 7.0) == {
        400: "the held-out mlm loss is 6.900, worse than the unigram's 6.600; it was 6.200",
        1000: "the held-out mlm loss is 7.000, worse than the unigram's 6.600; it was 6.100",
    }
    assert list(judged(9.3, 7.2, 7.0, 7.0, 7.0, 7.0, 7.0)) == [1000]  # half of the run is over
    assert judged(4.8, 4.5, 4.4, 4.3, every=8, warmup=4, num_steps=24) == {}  # a run of 24 steps
    assert judged(9.3, 12.0, warmup=300) == {}  # in the warm-up
    assert judged(9.3, None) == {200: "the held-out mlm loss is not finite"}
    assert alarms().evaluation(0, {"accuracy": 0.5}) is None


# ---- Rolling back ----------------------------------------------------------------------------------------------------

FIRST, NUMBER, STEPS = 44, 2, 60  # the window of two steps in which the loss leaps


@dataclasses.dataclass(frozen=True)
class Without(Points):
    """Points as if the batches of the window had never been there."""

    def rows(self, epochs: np.ndarray, indices: np.ndarray) -> dict[str, np.ndarray]:
        return super().rows(epochs, np.where(indices >= FIRST * BATCH, indices + NUMBER * BATCH, indices))


SPOILT = Points(frozenset(range(FIRST * BATCH, (FIRST + NUMBER) * BATCH)), 100.0)


def losses(workdir: Path) -> list[tuple[int, str, Any]]:
    records = read_records(workdir)
    return [(r["step"], r["split"], r.get("loss", r["squared_error"])) for r in records]


def assert_same_run(found: Path, expected: Path) -> None:
    assert losses(found) == losses(expected)
    jax.tree.map(np.testing.assert_array_equal, read_params(str(found))[0], read_params(str(expected))[0])


def test_a_spike_is_an_alarm_and_no_reason_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A spike from which there is no way back does not end the run either."""
    train(tmp_path, SPOILT, num_steps=STEPS, on_spike="roll_back", save_every=STEPS)
    assert "no roll back: there is no verified step before that" in capsys.readouterr().err
    [alarm] = status.read(tmp_path)["alarms"]
    assert alarm["step"] == FIRST + NUMBER
    assert "finished, with alarms" in status.describe(tmp_path)
    assert f"step {FIRST + NUMBER}: {alarm['text']}" in Path(write_report(tmp_path)).read_text()
    assert read_run(str(tmp_path)).get("rolled_back") is None


def test_a_roll_back_ends_as_a_run_without_those_batches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes = {"num_steps": STEPS, "on_spike": "roll_back", "save_every": 15}
    train(tmp_path / "whole", Without(), **changes)
    assert status.read(tmp_path / "whole")["alarms"] == []
    train(tmp_path / "back", SPOILT, **changes)
    assert "rolled back from step 46 to 30; the 2 batches from step 44 on are left out" in capsys.readouterr().err
    entry = {"at": FIRST + NUMBER, "to": 30, "first": FIRST, "number": NUMBER}
    assert read_run(str(tmp_path / "back"))["rolled_back"] == [entry]
    assert read_params(str(tmp_path / "back"))[1]["run"]["rolled_back"] == [entry]
    assert_same_run(tmp_path / "back", tmp_path / "whole")
    for later in (45, 60):  # a resume knows of it
        (tmp_path / "back" / "checkpoints" / str(later)).rename(tmp_path / str(later))
    train(tmp_path / "back", SPOILT, **changes)
    assert_same_run(tmp_path / "back", tmp_path / "whole")


def test_batches_that_are_left_out() -> None:
    """From its step to the end of its phase, each entry moves the batches on, with buckets too."""
    kinds = [Phase(10, 4, 8, kind) for kind in "ab"]
    plain, phases = Phases(tuple(kinds)), Phases(tuple(kinds), ((3, 2), (5, 1), (12, 4)))
    longer = Phases(tuple(dataclasses.replace(kind, num_steps=30) for kind in kinds))
    buckets = (Bucket("short", 80, 2), Bucket("long", 80, 1))
    for step, batch in {0: 0, 2: 2, 3: 5, 4: 6, 5: 8, 9: 12, 10: 30, 11: 31, 12: 36, 19: 43}.items():
        for of_rows in ((), buckets):
            found, expected = phases.rows_of(step, (1000, 1000), of_rows), longer.rows_of(batch, (1000, 1000), of_rows)
            np.testing.assert_array_equal(found.rows, expected.rows)
            assert found.kind == expected.kind
    assert plain.rows_of(5, (1000, 1000)).rows[0] == 20
