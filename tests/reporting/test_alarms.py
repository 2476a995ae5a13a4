"""Finite losses that show that a run has gone wrong are reported, and false alarms are not."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from bert_jax.reporting import status
from bert_jax.reporting.alarms import ENOUGH, Alarms
from bert_jax.reporting.report import write_report
from tests.training.line import BATCH, Points, train

UNIGRAM = {"unigram_cross_entropy": 6.6}


def alarms(seen: list[dict[str, Any]] | None = None, warmup: int = 100, num_steps: int = 2000) -> Alarms:
    return Alarms(seen or [], UNIGRAM, warmup, num_steps)


def falling(count: int, seed: int = 0, noise: float = 0.05) -> list[float]:
    """Losses of a pretraining run, window by window."""
    rng = random.Random(seed)
    return [2.5 + 8.2 * 0.98**number + rng.gauss(0, noise) for number in range(count)]


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.5])
def test_a_spike_is_reported_once_and_noise_is_not(noise: float) -> None:
    found = alarms()
    losses = [*falling(200, noise=noise), 9.0, 10.0, *falling(220, noise=noise)[200:], 9.5]
    spikes = {number: text for number, loss in enumerate(losses) if (text := found.train({"loss": loss}))}
    assert list(spikes) == [200, 222]
    assert "the loss is 9.000, after 2." in spikes[200]


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
    """What is reported of held-out losses."""
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


def test_a_spike_is_an_alarm_and_no_reason_to_end(tmp_path: Path) -> None:
    first, number = 44, 2  # the window of two steps in which the loss leaps
    spoilt = Points(frozenset(range(first * BATCH, (first + number) * BATCH)), 100.0)
    train(tmp_path, spoilt, num_steps=60, save_every=60)
    [alarm] = status.read(tmp_path)["alarms"]
    assert alarm["step"] == first + number
    assert "finished, with alarms" in status.describe(tmp_path)
    assert f"step {first + number}: {alarm['text']}" in Path(write_report(tmp_path)).read_text()
