"""A process that stands still ends by itself, with the stacks of all its threads."""

import faulthandler
import subprocess
import sys
import time

import pytest

from bert_jax.cluster import distributed
from bert_jax.cluster.exit_codes import CRASHED, FINAL
from bert_jax.cluster.watchdog import FIRST_SECONDS, TIMES_LONGEST, Watchdog

STUCK = """
import threading, time
from bert_jax.cluster.watchdog import Watchdog

def wait_for_rows():
    time.sleep(60)

threading.Thread(target=wait_for_rows, daemon=True).start()
with Watchdog(0.2) as watchdog:
    for state in ("training", "reading", "training"):
        watchdog.at(1, state)
    wait_for_rows()
"""


def test_a_stall_ends_the_process_with_all_stacks() -> None:
    done = subprocess.run([sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=50)
    assert done.returncode == CRASHED
    assert CRASHED not in FINAL  # so it is started again
    assert "Timeout" in done.stderr
    assert done.stderr.count("in wait_for_rows") == 2  # of both threads


def test_how_long_what_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    armed: list[float] = []
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda seconds, exit, file: armed.append(seconds))
    monkeypatch.setattr(faulthandler, "cancel_dump_traceback_later", lambda: armed.append(0))
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def at(state: str, seconds: float) -> list[float]:
        """What is armed for a state that then lasts so long."""
        armed.clear()
        distributed.at(1, state)
        now[0] += seconds
        return list(armed)

    at("saving", 0.1)  # without a watchdog nothing is armed
    assert armed == []
    with Watchdog(900.0):
        assert at("compiling", 500) == [0]  # nobody knows how long that takes
        assert at("first step", 100) == [FIRST_SECONDS]
        assert at("training", 0.1) == [FIRST_SECONDS]
        assert at("reading", 0.1) == []  # armed for as long, a moment ago
        assert at("training", 0.5) == [900]
        assert at("reading", 0.1) == []
        assert at("training", 60) == []  # not yet a second since the last arming
        assert at("reading", 1) == [900]
        assert at("training", 1) == [TIMES_LONGEST * 60]
        assert at("compiling", 1) == [TIMES_LONGEST * 500]
    assert armed[-1] == 0
    assert at("training", 1) == []


def test_of_several_the_timer_is_for_a_process_in_which_no_thread_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    armed: list[float] = []
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda seconds, exit, file: armed.append(seconds))
    with Watchdog(900.0, heartbeat_seconds=30.0) as watchdog:
        for state in ("compiling", "training", "saving", "training"):
            distributed.at(1, state)
        assert armed == []
        assert watchdog.progress().limit == 30.0
        assert armed == [60.0]
        distributed.at(1, "saving")
        assert watchdog.progress().limit == 900.0
        distributed.at(2, "evaluating")
        assert watchdog.progress().limit == FIRST_SECONDS
