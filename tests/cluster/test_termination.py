"""SIGTERM and Ctrl-C to a process that is alone: what raises, what waits for the step, what ends it at once."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bert_jax.cluster import signals, termination
from bert_jax.cluster.termination import Termination
from bert_jax.errors import Interrupted, Preempted


@pytest.fixture(autouse=True)
def ended(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Codes that the process would have ended with at once. An own Ctrl-C has no echo here."""
    codes: list[int] = []
    monkeypatch.setattr(signals, "end_at_once", lambda code=130: codes.append(code))
    monkeypatch.setattr(signals, "ECHO_SECONDS", -1.0)
    heard = dict.fromkeys(signals.TOLD_TO_END, signal.SIG_DFL) | {signal.SIGINT: signal.default_int_handler}
    first = {number: signal.signal(number, handler) for number, handler in heard.items()}  # may be ignored, by nohup
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *signals.TOLD_TO_END)}
    yield codes
    assert {number: signal.getsignal(number) for number in before} == before
    for number, handler in first.items():
        signal.signal(number, handler)
    assert not signals.hearers
    assert not signals._interrupts


def begun(termination: Termination) -> Iterator[int]:
    """Batches of a run that has made a step."""
    steps = termination.steps(range(100))
    next(steps)
    termination.saves = True
    return steps


def ending(work: Callable[[Termination], object]) -> BaseException:
    """What ends ``work`` inside of a ``Termination``."""
    try:
        with Termination() as termination:
            work(termination)
    except (KeyboardInterrupt, Preempted) as error:
        return error
    raise AssertionError("nothing ended it")


@pytest.mark.parametrize(
    ("number", "raised"),
    [(signal.SIGINT, KeyboardInterrupt), *((number, signals.ToldError) for number in signals.TOLD_TO_END)],
)
def test_before_the_first_step_it_raises(number: signal.Signals, raised: type[BaseException]) -> None:
    def work(termination: Termination) -> None:
        next(termination.steps(range(100)))  # and now this step is compiled
        signal.raise_signal(number)

    assert type(ending(work)) is raised


@pytest.mark.parametrize(
    ("number", "kind"), [(signal.SIGINT, Interrupted), *((number, Preempted) for number in signals.TOLD_TO_END)]
)
def test_in_training_the_step_is_saved_first(number: signal.Signals, kind: type[Preempted]) -> None:
    def work(termination: Termination) -> None:
        steps = begun(termination)
        termination.check()
        assert not termination.must_end()
        signal.raise_signal(number)
        assert termination.must_end()
        with pytest.raises(Preempted):  # an evaluation asks between two batches
            termination.check()
        assert list(steps) == []
        raise termination.ending("step 2 is saved")

    error = ending(work)
    assert type(error) is kind
    assert "step 2 is saved" in str(error)


def test_a_wait_for_a_batch_is_left() -> None:
    def batches() -> Iterator[int]:
        yield from range(5)
        signal.raise_signal(signal.SIGTERM)
        raise AssertionError("it goes on")

    def work(termination: Termination) -> None:
        termination.saves = True
        assert list(termination.steps(batches())) == list(range(5))
        assert termination.must_end()

    assert type(ending(work)) is Preempted


def test_a_second_ctrl_c_ends_at_once(ended: list[int]) -> None:
    def work(termination: Termination) -> None:
        begun(termination)
        signal.raise_signal(signal.SIGINT)
        assert not ended
        signal.raise_signal(signal.SIGINT)

    ending(work)
    assert ended == [130]


def test_sigterm_to_the_supervisor_and_to_the_run_is_one(ended: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """SLURM sends it to every process, and the supervisor passes it on: the step is to be saved all the same."""

    def work(after: Termination) -> None:
        begun(after)
        for _ in range(2):
            signal.raise_signal(signal.SIGTERM)
        assert not ended
        monkeypatch.setattr(termination, "SAME_SECONDS", -1.0)
        signal.raise_signal(signal.SIGTERM)  # and one that is meant ends it at once

    ending(work)
    assert ended == [143]


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1])
def test_a_notice_and_then_sigterm_are_one(number: signal.Signals, ended: list[int], monkeypatch: Any) -> None:
    """SLURM sends SIGUSR1 before the time limit and SIGTERM at it; a shell that ends passes its SIGHUP on."""

    def work(after: Termination) -> None:
        begun(after)
        monkeypatch.setattr(termination, "SAME_SECONDS", -1.0)
        for each in (number, number):
            signal.raise_signal(each)
        monkeypatch.setattr(termination, "SAME_SECONDS", 2.0)
        signal.raise_signal(signal.SIGTERM)

    assert type(ending(work)) is Preempted
    assert ended == []


def test_a_signal_after_the_last_step_raises_at_the_end() -> None:
    def work(termination: Termination) -> None:
        begun(termination)
        signal.raise_signal(signal.SIGINT)

    assert type(ending(work)) is KeyboardInterrupt


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_an_ignored_signal_stays_ignored(number: signal.Signals) -> None:
    """As Ctrl-C is in the background of a shell script, and SIGHUP under nohup."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with Termination() as termination:
            begun(termination)
            signal.raise_signal(number)
            assert not termination.must_end()
    finally:
        signal.signal(number, before)
