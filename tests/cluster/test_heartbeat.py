"""The heartbeat: real sockets between threads, each with what a process has."""

from __future__ import annotations

import errno
import json
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from bert_jax.cluster import exit_codes, handshake, heartbeat_client, heartbeat_server, rendezvous
from bert_jax.cluster.exit_codes import BAD_INPUT, CRASHED, INTERRUPTED, PEER_LOST
from bert_jax.cluster.heartbeat_client import HeartbeatClient
from bert_jax.cluster.messages import Waits, as_line
from bert_jax.cluster.rendezvous import Rendezvous
from bert_jax.errors import PeerLostError, UserError
from tests.cluster.job import Job, until

NewJob = Callable[..., Job]


def been_through(clients: list[HeartbeatClient], *states: str) -> None:
    """All are at step 7 in the last of ``states``; the others, and those named twice, are new to none any more."""
    for client in clients:
        for state in states:
            client.at(7, state)


def cut(client: HeartbeatClient) -> None:
    """As the kernel does when a process is killed."""
    client.close()


def test_all_leave_in_any_order(new_job: NewJob) -> None:
    job = new_job(4)
    clients = job.clients()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda client: client.wait(heartbeat_client.END), clients))
    for client in clients:
        client.leave()
    time.sleep(0.3)
    assert not job.stops


@pytest.mark.parametrize("lost", [0, 2])
def test_who_is_gone_is_named_to_all_others(new_job: NewJob, lost: int) -> None:
    job = new_job(4)
    clients = job.clients()
    clients[lost].at(17, "training")
    server = clients[0]._server
    assert server is not None
    until(lambda: server._members[lost].step == 17)
    cut(clients[lost])
    until(lambda: len(job.stops) == 4)
    for number in {0, 1, 2, 3} - {lost}:
        reason, code = job.stops[number]
        assert reason.startswith(f"process {lost} on ")
        assert "is gone (at step 17, training)" in reason
        assert code == PEER_LOST


def test_who_stands_still_is_named_though_the_others_wait_for_it(new_job: NewJob) -> None:
    job = new_job(3, heartbeat_seconds=2.0)
    clients = job.clients()
    for step in range(3):
        for client in clients:
            client.at(step, "training")
        time.sleep(0.01)
    for number in (0, 2):
        clients[number].at(3, "training")  # process 1 stays at step 2
    until(lambda: len(job.stops) == 3)
    assert "process 1 on " in job.stops[0][0]
    assert "has stood still for" in job.stops[0][0]
    assert "at step 2, training (the others are at step 3)" in job.stops[0][0]


def test_a_frozen_process_0_is_noticed_by_the_others(new_job: NewJob, monkeypatch: pytest.MonkeyPatch) -> None:
    job = new_job(3, heartbeat_seconds=1.0)
    clients = job.clients()
    server = clients[0]._server
    assert server is not None

    def say_nothing(message: object) -> None:
        pass

    monkeypatch.setattr(server, "_tell", say_nothing)
    until(lambda: {1, 2} <= set(job.stops))
    assert job.stops[2] == (job.stops[2][0], PEER_LOST)
    assert "process 0 at 127.0.0.1:" in job.stops[1][0]
    assert "has been silent for" in job.stops[1][0]


def test_what_is_new_may_take_long(new_job: NewJob) -> None:
    job = new_job(2, heartbeat_seconds=1.5)
    clients = job.clients()
    for client in clients:
        client.at(0, "compiling")
    time.sleep(2.0)
    assert not job.stops


def test_who_waits_for_a_slow_disk_waits_as_long(new_job: NewJob) -> None:
    job = new_job(2, heartbeat_seconds=1.0)
    clients = job.clients()
    been_through(clients, "saving", "training", "saving")
    clients[1].at(8, "training")
    time.sleep(1.5)
    assert not job.stops
    clients[0].at(7, "training")
    until(lambda: len(job.stops) == 2)
    assert "process 0 on " in job.stops[1][0]
    assert "at step 7, training (the others are at step 8)" in job.stops[1][0]


def test_who_reads_what_has_to_be_planned_has_time(new_job: NewJob) -> None:
    """The plan of an epoch or a phase takes minutes, after thousands of rows that took none."""
    job = new_job(2, heartbeat_seconds=2.0)
    clients = job.clients()
    been_through(clients, "reading", "training", "reading")
    time.sleep(2.6)
    assert not job.stops


def test_who_evaluates_waits_for_a_step_that_no_log_knows(new_job: NewJob) -> None:
    job = new_job(2, heartbeat_seconds=1.0)
    clients = job.clients()
    for client in clients:
        for step in (7, 8):
            client.at(step, "training")
    clients[0].at(5, "evaluating")  # at a step that was logged
    until(lambda: len(job.stops) == 2)
    assert "process 1 on " in job.stops[0][0]
    assert "at step 8, training (the others are at step 8)" in job.stops[0][0]


def test_at_one_step_who_has_got_on_less_often_is_named(new_job: NewJob) -> None:
    """Though the other has stood still for longer, as the clocks of two machines and a slow network may have it."""
    job = new_job(2, heartbeat_seconds=1.5)
    clients = job.clients()
    been_through(clients, "training", "saving", "training")
    clients[0].at(7, "training")
    until(lambda: clients[0]._server._members[0].moves == 4)  # type: ignore[union-attr]
    time.sleep(0.3)
    clients[1]._now = (*clients[1]._now[:2], time.monotonic(), clients[1]._now[3])
    until(lambda: len(job.stops) == 2)
    assert "process 1 on " in job.stops[0][0]


def test_who_does_not_read_keeps_nothing_from_the_others(new_job: NewJob) -> None:
    """Frozen, say, with its buffers full."""
    job, holds = new_job(3), "x" * 60_000
    clients = [job.client(0), job.client(1)]
    with ThreadPoolExecutor(2) as pool:
        meeting = Rendezvous(job.address, 3, 2, str(job.workdir))
        frozen, _ = handshake.join(meeting)
        for future in [pool.submit(client.wait_for_all) for client in clients]:
            future.result(timeout=30)
        for turn in range(60):
            frozen.sendall(as_line(Waits(str(turn), holds, alike=False)))
        for turn in range(60):
            passed = [pool.submit(client.exchange, str(turn), holds) for client in clients]
            assert [len(future.result(timeout=30)) for future in passed] == [3, 3]
        cut(clients[1])
        until(lambda: 0 in job.stops, seconds=10)
        frozen.close()
    assert job.stops[0][0].startswith("process 1 on ")


def test_a_job_that_is_over_before_process_0_has_come_is_over_for_it_too(
    new_job: NewJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server of process 0 starts first; then process 0 joins, as all processes do."""
    job, join = new_job(3), handshake.join

    def join_later(meeting: Rendezvous) -> Any:
        if meeting.process_id == 0:
            until(lambda: 1 in job.stops)
        return join(meeting)

    monkeypatch.setattr(handshake, "join", join_later)
    first = threading.Thread(target=job.waiting, args=(0,), daemon=True)
    first.start()
    job.waiting(1, count=4)
    until(lambda: 0 in job.stops, seconds=10)
    assert job.stops[0] == job.stops[1] == (job.stops[1][0], BAD_INPUT)


@pytest.mark.parametrize(
    ("own", "others"),
    [(BAD_INPUT, BAD_INPUT), (INTERRUPTED, INTERRUPTED), (CRASHED, PEER_LOST)],
    ids=["the same again", "Ctrl-C", "a crash"],
)
def test_an_error_of_one_reaches_all(new_job: NewJob, own: int, others: int) -> None:
    """Where nothing is to be started again, none of them is."""
    job = new_job(3)
    clients = job.clients()
    clients[1].fail("UserError: no such file", own)
    until(lambda: len(job.stops) >= 2)
    assert job.stops[2][0].endswith("has failed: UserError: no such file")
    assert job.stops[2][1] == others


def test_what_differs_is_named(new_job: NewJob) -> None:
    job = new_job(3)
    clients = job.clients()
    for number, client in enumerate(clients):
        value = "abc" if number == 1 else "xyz"
        threading.Thread(target=client.wait, args=("the corpus", value), daemon=True).start()
    until(lambda: len(job.stops) == 3)
    reason, code = job.stops[2]
    assert "the corpus is abc on process 1 on " in reason
    assert "but xyz on process 0 on " in reason
    assert code == BAD_INPUT


def test_of_a_config_the_keys_that_differ_are_named(new_job: NewJob) -> None:
    job = new_job(2)
    configs = [{"seed": 0, "schedule": {"peak": 1e-3}, "workers": 0}, {"seed": 0, "schedule": {"peak": 2e-3}}]
    for client, config in zip(job.clients(), configs, strict=True):
        threading.Thread(target=client.wait, args=("the config", json.dumps(config)), daemon=True).start()
    until(lambda: len(job.stops) == 2)
    reason, code = job.stops[1]
    assert reason.startswith("the config on process 1 on ")
    assert "schedule.peak is 0.002, not 0.001, workers is absent, not 0; make them the same" in reason
    assert code == BAD_INPUT


def test_two_processes_0(new_job: NewJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat_server, "PORT_SECONDS", 0.2)
    job = new_job(2)
    first = job.waiting(0)
    until(lambda: first._server is not None and 0 in first._server._members)
    with pytest.raises(UserError, match="two processes have --process_id=0: pid .* number them from 0 to 1"):
        job.client(0)
    until(lambda: 0 in job.stops)
    assert job.stops[0][0].startswith("two processes have --process_id=0")
    assert job.stops[0][1] == BAD_INPUT


def test_two_with_one_number(new_job: NewJob) -> None:
    job = new_job(3)
    for number in (0, 1, 1):
        job.waiting(number)
    until(lambda: {0, 1} <= set(job.stops))
    assert job.stops[0][0].startswith("two processes have --process_id=1: pid ")
    assert job.stops[0][1] == BAD_INPUT


def test_a_second_one_that_comes_late_is_the_only_one_to_go(new_job: NewJob) -> None:
    """A launcher that starts a host anew does not wait until the job has noticed that the old one is silent."""
    job, late = new_job(2), new_job(2)
    job.clients()
    with pytest.raises(
        PeerLostError, match=r"runs a job whose 2 processes have all arrived, and this process 1 does not"
    ):
        late.client(1)
    time.sleep(0.3)
    assert not job.stops


def test_a_second_process_0_that_comes_late(new_job: NewJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat_server, "PORT_SECONDS", 0.2)
    job = new_job(2)
    job.clients()
    with pytest.raises(UserError, match=r"a job runs whose processes have all arrived; wait for it"):
        new_job(2).client(0)
    time.sleep(0.3)
    assert not job.stops


def test_another_number_of_processes(new_job: NewJob) -> None:
    job = new_job(3)
    job.waiting(0)
    job.waiting(1, count=4)
    until(lambda: {0, 1} <= set(job.stops))
    assert "expects 4 processes, process 0 3" in job.stops[1][0]


def test_who_does_not_come_is_named(new_job: NewJob) -> None:
    job = new_job(4, arrival_seconds=0.5)
    for number in (0, 2):
        job.waiting(number)
    until(lambda: len(job.stops) == 2)
    assert "processes 1, 3 of 4 have not arrived at 127.0.0.1:" in job.stops[2][0]


STUCK = """
import ctypes, sys
from bert_jax.cluster.heartbeat_client import HeartbeatClient
from bert_jax.cluster.rendezvous import Rendezvous
HeartbeatClient(Rendezvous(sys.argv[1], 2, 1, sys.argv[2], heartbeat_seconds=2.0)).wait_for_all()
ctypes.PyDLL(None).sleep(600)  # as a library that never lets go of the interpreter
"""


def test_a_process_in_which_no_thread_can_run_ends_itself(new_job: NewJob) -> None:
    """The supervisor waits for this end, and then starts the process again with the others."""
    job = new_job(2, heartbeat_seconds=2.0)
    client = job.client(0)
    command = [sys.executable, "-c", STUCK, job.address, str(job.workdir)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as stuck:
        try:
            client.wait_for_all()
            _, said = stuck.communicate(timeout=60)
        finally:
            stuck.kill()
    assert stuck.returncode == 1, said
    assert "in <module>" in said  # where it stood
    assert job.stops[0][0].startswith("process 1 on ")


def test_many_clients_and_few_files(new_job: NewJob) -> None:
    """1,024 is a usual limit."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, before[1]))
    try:
        assert len(new_job(24, arrival_seconds=20.0).clients()) == 24
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_process_0_that_is_not_there(new_job: NewJob) -> None:
    with pytest.raises(PeerLostError, match=r"cannot reach process 0 at 127.0.0.1:\d+ .* after 0 s of trying"):
        new_job(2, arrival_seconds=0.2).client(1)


def test_a_port_that_is_taken(new_job: NewJob, address: str) -> None:
    host, _, port = address.rpartition(":")
    with socket.create_server((host, int(port))), pytest.raises(UserError, match="give --coordinator another port"):
        new_job(2, arrival_seconds=0.2).client(0)


@pytest.mark.parametrize("address", ["host", "host:", ":8476", "host:0", "host:70000", "host:x"])
def test_addresses(address: str) -> None:
    with pytest.raises(UserError, match="HOST:PORT is needed"):
        rendezvous.split_address(address)


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
