"""The roll call: real sockets between threads, each with what a process has."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import pytest

from bert_jax.cluster import desk as desks
from bert_jax.cluster import roll_call
from bert_jax.cluster.desk import Call
from bert_jax.cluster.exit_codes import BAD_INPUT, PEER_LOST
from bert_jax.cluster.roll_call import Line
from bert_jax.errors import PeerLostError, UserError

Stops = dict[int, tuple[str, int]]


@pytest.fixture
def address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


class Job:
    """Lines of several "processes" of this one, and what each was stopped with."""

    opened: ClassVar[list[Line]] = []

    def __init__(self, address: str, count: int, **limits: Any):
        self.stops: Stops = {}
        self._address, self._count, self._limits = address, count, limits

    def line(self, number: int, count: int | None = None) -> Line:
        call = Call(self._address, count or self._count, number, **self._limits)
        line = Line(call, lambda reason, code: self.stops.setdefault(number, (reason, code)))
        self.opened.append(line)
        return line

    def lines(self) -> list[Line]:
        with ThreadPoolExecutor(self._count) as pool:
            lines = list(pool.map(self.line, range(self._count)))
            cards = list(pool.map(lambda line: line.gather({"pid_of": "test"}), lines))
        assert all([card["process_id"] for card in found] == list(range(self._count)) for found in cards)
        return lines


def until(done: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def been_through(lines: list[Line], *states: str) -> None:
    """All are at step 7 in the last of ``states``; the others, and those named twice, are new to none any more."""
    for line in lines:
        for state in states:
            line.at(7, state)


def cut(line: Line) -> None:
    """As the kernel does when a process is killed."""
    line.close()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(desks, "BEAT_SECONDS", 0.05)
    yield
    while Job.opened:
        line = Job.opened.pop()
        line._ending = True
        line.close()
    until(lambda: not [thread for thread in threading.enumerate() if thread.name == "roll-call"])


def test_all_leave_in_any_order(address: str) -> None:
    job = Job(address, 4)
    lines = job.lines()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda line: line.wait(roll_call.END), lines))
    for line in lines:
        line.leave()
    time.sleep(0.3)
    assert not job.stops


@pytest.mark.parametrize("lost", [0, 2])
def test_who_is_gone_is_named_to_all_others(address: str, lost: int) -> None:
    job = Job(address, 4)
    lines = job.lines()
    lines[lost].at(17, "training")
    desk = lines[0]._desk
    assert desk is not None
    until(lambda: desk._members[lost].step == 17)
    cut(lines[lost])
    until(lambda: len(job.stops) == 4)
    for number in {0, 1, 2, 3} - {lost}:
        reason, code = job.stops[number]
        assert reason.startswith(f"process {lost} on ")
        assert "is gone (at step 17, training)" in reason
        assert code == PEER_LOST


def test_who_stands_still_is_named_though_the_others_wait_for_it(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(address, 3, heartbeat_seconds=2.0)
    lines = job.lines()
    for step in range(3):
        for line in lines:
            line.at(step, "training")
        time.sleep(0.01)
    for number in (0, 2):
        lines[number].at(3, "training")  # process 1 stays at step 2
    until(lambda: len(job.stops) == 3)
    assert "process 1 on " in job.stops[0][0]
    assert "has stood still for" in job.stops[0][0]
    assert "at step 2, training (the others are at step 3)" in job.stops[0][0]


def test_a_frozen_process_0_is_noticed_by_the_others(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(address, 3, heartbeat_seconds=1.0)
    lines = job.lines()
    desk = lines[0]._desk
    assert desk is not None

    def say_nothing(message: object) -> None:
        pass

    monkeypatch.setattr(desk, "_tell", say_nothing)
    until(lambda: {1, 2} <= set(job.stops))
    assert job.stops[2] == (job.stops[2][0], PEER_LOST)
    assert "process 0 at 127.0.0.1:" in job.stops[1][0]
    assert "has been silent for" in job.stops[1][0]


def test_what_is_new_may_take_long(address: str) -> None:
    job = Job(address, 2, heartbeat_seconds=1.5)
    lines = job.lines()
    for line in lines:
        line.at(0, "compiling")
    time.sleep(2.0)
    assert not job.stops


def test_who_waits_for_a_slow_disk_waits_as_long(address: str) -> None:
    job = Job(address, 2, heartbeat_seconds=1.0)
    lines = job.lines()
    been_through(lines, "saving", "training", "saving")
    lines[1].at(8, "training")
    time.sleep(1.5)
    assert not job.stops
    lines[0].at(7, "training")
    until(lambda: len(job.stops) == 2)
    assert "process 0 on " in job.stops[1][0]
    assert "at step 7, training (the others are at step 8)" in job.stops[1][0]


def test_who_reads_what_has_to_be_planned_has_time(address: str) -> None:
    """The plan of an epoch or a phase takes minutes, after thousands of rows that took none."""
    job = Job(address, 2, heartbeat_seconds=2.0)
    lines = job.lines()
    been_through(lines, "reading", "training", "reading")
    time.sleep(2.6)
    assert not job.stops


def test_who_evaluates_waits_for_a_step_that_no_log_knows(address: str) -> None:
    job = Job(address, 2, heartbeat_seconds=1.0)
    lines = job.lines()
    for line in lines:
        for step in (7, 8):
            line.at(step, "training")
    lines[0].at(5, "evaluating")  # at a step that was logged
    until(lambda: len(job.stops) == 2)
    assert "process 1 on " in job.stops[0][0]
    assert "at step 8, training (the others are at step 8)" in job.stops[0][0]


def test_at_one_step_who_has_got_on_less_often_is_named(address: str) -> None:
    """Though the other has stood still for longer, as the clocks of two machines and a slow network may have it."""
    job = Job(address, 2, heartbeat_seconds=1.5)
    lines = job.lines()
    been_through(lines, "training", "saving", "training")
    lines[0].at(7, "training")
    until(lambda: lines[0]._desk._members[0].moves == 4)  # type: ignore[union-attr]
    time.sleep(0.3)
    lines[1]._now = (*lines[1]._now[:2], time.monotonic(), lines[1]._now[3])
    until(lambda: len(job.stops) == 2)
    assert "process 1 on " in job.stops[0][0]


def test_who_does_not_read_keeps_nothing_from_the_others(address: str) -> None:
    """Frozen, say, with its buffers full."""
    job, holds = Job(address, 3), "x" * 60_000
    lines = [job.line(0), job.line(1)]
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))) as frozen, ThreadPoolExecutor(2) as pool:
        messages = [{"process_id": 2, "num_processes": 3, "host": "frozen", "pid": 1}]
        messages += [{"waits": str(turn), "holds": holds, "alike": False} for turn in range(60)]
        gathered = [pool.submit(line.gather, {}) for line in lines]
        for message in messages:
            frozen.sendall(desks.as_line(message))
        assert [len(future.result(timeout=30)) for future in gathered] == [3, 3]
        for turn in range(60):
            passed = [pool.submit(line.exchange, str(turn), holds) for line in lines]
            assert [len(future.result(timeout=30)) for future in passed] == [3, 3]
        cut(lines[1])
        until(lambda: 0 in job.stops, seconds=10)
    assert job.stops[0][0].startswith("process 1 on ")


def test_a_job_that_is_over_before_process_0_has_come_is_over_for_it_too(address: str) -> None:
    job = Job(address, 3)
    first, stranger = job.line(0), job.line(1, count=4)
    threading.Thread(target=stranger.gather, args=({},), daemon=True).start()
    until(lambda: 1 in job.stops)
    time.sleep(0.5)
    threading.Thread(target=first.gather, args=({},), daemon=True).start()
    until(lambda: 0 in job.stops, seconds=10)
    assert job.stops[0] == job.stops[1] == (job.stops[1][0], BAD_INPUT)


def test_an_error_of_one_is_told_to_all(address: str) -> None:
    job = Job(address, 3)
    lines = job.lines()
    lines[1].fail("UserError: no such file", BAD_INPUT)
    until(lambda: len(job.stops) >= 2)
    assert job.stops[2][0].endswith("has failed: UserError: no such file")
    assert job.stops[2][1] == BAD_INPUT


def test_what_differs_is_named(address: str) -> None:
    job = Job(address, 3)
    lines = job.lines()
    for number, line in enumerate(lines):
        value = "abc" if number == 1 else "xyz"
        threading.Thread(target=line.wait, args=("the corpus", value), daemon=True).start()
    until(lambda: len(job.stops) == 3)
    reason, code = job.stops[2]
    assert "the corpus is abc on process 1 on " in reason
    assert "but xyz on process 0 on " in reason
    assert code == BAD_INPUT


def test_of_a_config_the_keys_that_differ_are_named(address: str) -> None:
    job = Job(address, 2)
    configs = [{"seed": 0, "schedule": {"peak": 1e-3}, "workers": 0}, {"seed": 0, "schedule": {"peak": 2e-3}}]
    for line, config in zip(job.lines(), configs, strict=True):
        threading.Thread(target=line.wait, args=("the config", json.dumps(config)), daemon=True).start()
    until(lambda: len(job.stops) == 2)
    reason, code = job.stops[1]
    assert reason.startswith("the config on process 1 on ")
    assert "schedule.peak is 0.002, not 0.001, workers is absent, not 0; make them the same" in reason
    assert code == BAD_INPUT


def test_two_processes_0(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desks, "PORT_SECONDS", 0.2)
    job = Job(address, 2)
    first = job.line(0)
    threading.Thread(target=first.gather, args=({},), daemon=True).start()
    until(lambda: first._desk is not None and 0 in first._desk._members)
    with pytest.raises(UserError, match="two processes have --process_id=0: pid .* number them from 0 to 1"):
        job.line(0)
    until(lambda: 0 in job.stops)
    assert job.stops[0][0].startswith("two processes have --process_id=0")
    assert job.stops[0][1] == BAD_INPUT


def test_two_with_one_number(address: str) -> None:
    job = Job(address, 3)
    first = job.line(0)
    for line in (first, job.line(1), job.line(1)):
        threading.Thread(target=line.gather, args=({},), daemon=True).start()
        time.sleep(0.1)
    until(lambda: {0, 1} <= set(job.stops))
    assert job.stops[0][0].startswith("two processes have --process_id=1: pid ")
    assert job.stops[0][1] == BAD_INPUT


def test_a_second_one_that_comes_late_is_the_only_one_to_go(address: str) -> None:
    """A launcher that starts a host anew does not wait until the job has noticed that the old one is silent."""
    job, late = Job(address, 2), Job(address, 2)
    job.lines()
    threading.Thread(target=late.line(1).gather, args=({},), daemon=True).start()
    until(lambda: 1 in late.stops)
    assert late.stops[1][0].startswith("two processes have --process_id=1: pid ")
    assert late.stops[1][1] == PEER_LOST  # to come again
    time.sleep(0.3)
    assert not job.stops


def test_another_number_of_processes(address: str) -> None:
    job = Job(address, 3)
    for line in (job.line(0), job.line(1, count=4)):
        threading.Thread(target=line.gather, args=({},), daemon=True).start()
        time.sleep(0.1)
    until(lambda: {0, 1} <= set(job.stops))
    assert "expects 4 processes, process 0 3" in job.stops[1][0]


def test_who_does_not_come_is_named(address: str) -> None:
    job = Job(address, 4, arrival_seconds=0.5)
    for number in (0, 2):
        threading.Thread(target=job.line(number).gather, args=({},), daemon=True).start()
    until(lambda: len(job.stops) == 2)
    assert "processes 1, 3 of 4 have not come to 127.0.0.1:" in job.stops[2][0]


STUCK = """
import ctypes, sys
from bert_jax.cluster.desk import Call
from bert_jax.cluster.roll_call import Line
Line(Call(sys.argv[1], 2, 1, heartbeat_seconds=2.0)).gather({})
ctypes.PyDLL(None).sleep(600)  # as a library that never lets go of the interpreter
"""


def test_a_process_in_which_no_thread_can_run_ends_itself(address: str) -> None:
    """Its supervisor waits for that, to start it again with the others."""
    job = Job(address, 2, heartbeat_seconds=2.0)
    line = job.line(0)
    with subprocess.Popen([sys.executable, "-c", STUCK, address], stderr=subprocess.PIPE, text=True) as stuck:
        try:
            line.gather({})
            _, said = stuck.communicate(timeout=60)
        finally:
            stuck.kill()
    assert stuck.returncode == 1, said
    assert "in <module>" in said  # where it stood
    assert job.stops[0][0].startswith("process 1 on ")


def test_many_lines_and_few_files(address: str) -> None:
    """1,024 is a usual limit."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, before[1]))
    try:
        assert len(Job(address, 24, arrival_seconds=20.0).lines()) == 24
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_process_0_that_is_not_there(address: str) -> None:
    with pytest.raises(PeerLostError, match=r"cannot reach process 0 at 127.0.0.1:\d+ .* after 0 s of trying"):
        Job(address, 2, arrival_seconds=0.2).line(1)


def test_a_port_that_is_taken(address: str) -> None:
    host, _, port = address.rpartition(":")
    with socket.create_server((host, int(port))), pytest.raises(UserError, match="give --coordinator another port"):
        Job(address, 2, arrival_seconds=0.2).line(0)


@pytest.mark.parametrize("address", ["host", "host:", ":8476", "host:0", "host:70000", "host:x"])
def test_addresses(address: str) -> None:
    with pytest.raises(UserError, match="HOST:PORT is needed"):
        desks.split_address(address)
