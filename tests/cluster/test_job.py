"""The end of a job of several processes: who is named, what the others hear, with which code each leaves."""

from __future__ import annotations

import errno
import faulthandler
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bert_jax.cluster import distributed, exit_codes, job
from bert_jax.cluster.exit_codes import BAD_INPUT, CRASHED, INTERRUPTED, PEER_LOST, PREEMPTED
from bert_jax.cluster.watchdog import Progress, Watchdog
from bert_jax.errors import UserError
from tests.cluster.jobs import Together, free_address, until

HOST = socket.gethostname()
NewJob = Callable[..., Together]


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> Iterator[NewJob]:
    """``together(4, heartbeat_seconds=3.0)``: their hearts beat quickly, and no timer ends this process."""
    monkeypatch.setattr(job, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda *_, **__: None)
    made: list[Together] = []

    def new(*values: Any, **named: Any) -> Together:
        made.append(Together(*values, **named))
        return made[-1]

    yield new
    for one in made:
        one.end()
    Watchdog.open = None


def test_values_are_exchanged(together: NewJob) -> None:
    all_of_them, found = together(3), {}

    def work(_: job.Job, number: int) -> None:
        one = all_of_them.exchanges[number]
        numbers = [one.all_say("numbers", str(number + call)) for call in range(2)]
        firsts = [one.first_says("number", str(number + call)) for call in range(2)]
        assert one.difference("the corpus", "xyz") is None
        found[number] = numbers, firsts

    for thread in all_of_them.in_threads(work):
        thread.join(30)
    assert found == dict.fromkeys(range(3), ([["0", "1", "2"], ["1", "2", "3"]], ["0", "1"]))
    assert not all_of_them.stops


@pytest.mark.parametrize("lost", [0, 2])
def test_who_is_silent_is_named_to_all(together: NewJob, lost: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = together(3, heartbeat_seconds=1.0)
    found.at(17, "training")
    frozen = threading.Event()
    until(lambda: found.jobs[0]._seen[lost][0].step == 17)
    monkeypatch.setattr(found.jobs[lost].watchdog, "progress", lambda: frozen.wait() and Progress(17, 0, "", 0, 0))
    until(lambda: len(found.stops) == (3 if lost else 2))
    for number, (reason, code) in found.stops.items():
        assert reason.startswith(f"process {lost} on {HOST} has been silent for ")
        assert reason.endswith("(at step 17, training)") or lost == 0 != number
        assert code == PEER_LOST
    found.jobs[lost].leave()
    frozen.set()


@pytest.mark.parametrize("lost", [0, 2])
def test_who_is_gone_is_named_to_all_at_once(together: NewJob, lost: int) -> None:
    found = together(3)
    found.jobs[lost].leave()  # its connections end, as the system ends those of a process that dies
    until(lambda: len(found.stops) == 2)
    for reason, code in found.stops.values():
        assert reason == f"process {lost} on {HOST} is gone" + " (at step 0, starting)" * (lost > 0)
        assert code == PEER_LOST


def test_who_stands_still_is_named_though_the_others_wait_for_it(together: NewJob) -> None:
    found = together(3, heartbeat_seconds=3.0)
    for step in range(3):
        found.at(step, "training")
    found.at(3, "training", 0, 2)  # process 1 stays at step 2
    until(lambda: len(found.stops) == 3)
    reason, code = found.stops[0]
    assert f"process 1 on {HOST} has stood still for" in reason
    assert "at step 2, training (the others are at step 3)" in reason
    assert code == PEER_LOST


def test_at_one_step_who_has_got_on_less_often_is_named(together: NewJob) -> None:
    """Not who has stood still for longer, as the clocks of two machines and a slow network may have it."""
    found = together(2, heartbeat_seconds=3.0)
    for state in ("training", "saving", "training"):
        found.at(7, state)
    found.at(7, "training", 0)
    until(lambda: len(found.stops) == 2)
    assert f"process 1 on {HOST} has stood still" in found.stops[0][0]


@pytest.mark.parametrize("state", ["compiling", "saving", "reading"])
def test_what_is_new_or_uneven_may_take_long(together: NewJob, state: Any) -> None:
    found = together(2, heartbeat_seconds=2.0)
    found.at(0, state)
    if state != "compiling":
        found.at(1, "training")
        found.at(1, state)
    until(lambda: all(3.0 < progress.age < 4.0 for progress, _ in found.jobs[0]._seen.values()))
    assert not found.stops


@pytest.mark.parametrize(
    ("own", "others"),
    [(BAD_INPUT, BAD_INPUT), (PREEMPTED, PREEMPTED), (INTERRUPTED, INTERRUPTED), (CRASHED, PEER_LOST)],
    ids=["the same again", "told to go", "Ctrl-C", "a crash"],
)
@pytest.mark.parametrize("number", [0, 1])
def test_an_error_of_one_reaches_the_others(together: NewJob, own: int, others: int, number: int) -> None:
    """Where nothing is to be started again, none of them is."""
    found = together(3)
    found.jobs[number].fail("UserError: no such file", own)
    until(lambda: len(found.stops) == 2)
    assert found.stops[2] == (f"process {number} on {HOST} has failed: UserError: no such file", others)
    assert number not in found.stops  # it leaves with its own code


def test_process_0_that_fails_too_prints_its_own_error_alone(together: NewJob) -> None:
    found = together(2)
    found.jobs[1].fail("UserError: the disk is full", BAD_INPUT)
    found.jobs[0].end_alone()  # it has heard that, and waits until all others have
    time.sleep(4 * job.BEAT_SECONDS)
    assert not found.stops


def agree(found: Together, name: str, values: list[str]) -> None:
    def work(one: job.Job, number: int) -> None:
        line = found.exchanges[number].difference(name, values[number])
        assert line
        one.end_all(line, BAD_INPUT)

    found.in_threads(work)


def test_what_differs_is_named(together: NewJob) -> None:
    found = together(3)
    agree(found, "the corpus", ["xyz", "abc", "xyz"])
    until(lambda: len(found.stops) == 3)
    line = f"the corpus is abc on process 1 on {HOST}, but xyz on process 0 on {HOST}; make them the same"
    assert found.stops[2] == (line, BAD_INPUT)


def test_a_process_of_another_version_is_heard_until_the_versions_are_compared(together: NewJob) -> None:
    found = together(2)
    found.jobs[1]._tell(step=1, since=0.0)
    agree(found, "the code", ["abc", "xyz"])
    until(lambda: len(found.stops) == 2)
    line = f"the code is xyz on process 1 on {HOST}, but abc on process 0 on {HOST}; make them the same"
    assert found.stops[1] == (line, BAD_INPUT)


def test_of_a_config_the_keys_that_differ_are_named(together: NewJob) -> None:
    found = together(2)
    configs = [{"seed": 0, "schedule": {"peak": 1e-3}, "workers": 0}, {"seed": 0, "schedule": {"peak": 2e-3}}]
    agree(found, "the config", [json.dumps(config) for config in configs])
    until(lambda: len(found.stops) == 2)
    reason, code = found.stops[1]
    assert reason.startswith(f"the config on process 1 on {HOST} is not that on process 0 on {HOST}: ")
    assert "schedule.peak is 0.002, not 0.001, workers is absent, not 0; make them the same" in reason
    assert code == BAD_INPUT


@pytest.mark.parametrize("seen", ["true", "false"])
def test_a_workdir_that_another_process_does_not_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: str
) -> None:
    monkeypatch.setattr(distributed, "several", lambda: True)
    monkeypatch.setattr(distributed, "exchange", lambda name, value: [value, seen])
    if seen == "true":
        distributed.check_shared(str(tmp_path))
    else:
        with pytest.raises(UserError, match="processes 1 do not see what process 0 writes in .*; give all the same"):
            distributed.check_shared(str(tmp_path))
    assert not list(tmp_path.iterdir())


# ---- What this program takes from JAX ----------------------------------------------------------------------------

STORE = """
import sys, threading
import jax
from bert_jax.cluster.store import Store
jax.distributed.initialize(sys.argv[1], 1, 0, heartbeat_timeout_seconds=10)
store = Store()
threading.Timer(0.3, store.set, ("late", "value")).start()
assert store.wait_for("late") == "value"
raised = []
def listen():
    try:
        store.wait_for("never")
    except jax.errors.JaxRuntimeError as error:
        raised.append(error)
listener = threading.Thread(target=listen)
listener.start()
jax.distributed.shutdown()
listener.join(10)
assert raised
"""


def test_the_store_of_jax_does_what_is_asked_of_it() -> None:
    """It is private in JAX, so a new version of JAX may need another ``Store``."""
    command = [sys.executable, "-c", STORE, free_address()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(errno.EMFILE, "Too many open files", "x"), CRASHED),
        (OSError(errno.ENOSPC, "No space left on device", "x"), BAD_INPUT),
        (UserError("bad input"), BAD_INPUT),
    ],
)
def test_a_job_whose_files_others_use_up_is_started_again(error: Exception, code: int) -> None:
    wrapped = UserError("cannot save")
    wrapped.__cause__ = error
    assert exit_codes.of_several(wrapped, BAD_INPUT) == exit_codes.of_several(error, BAD_INPUT) == code
