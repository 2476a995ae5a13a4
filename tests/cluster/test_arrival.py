"""How the processes of a job meet: real connections between threads, each with what a process has."""

from __future__ import annotations

import faulthandler
import json
import re
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from bert_jax.cluster import job, line, processes
from bert_jax.cluster.job import Job
from bert_jax.cluster.processes import Processes, own_address, split_address
from bert_jax.errors import Interrupted, PeerLostError, UserError
from tests.cluster.jobs import free_address, until

ARRIVING: list[Arriving] = []  # of this test


class Arriving(threading.Thread):
    """A process that arrives; ``error`` is what it raised."""

    def __init__(self, address: str, number: int, count: int = 3, seconds: float = 30):
        super().__init__(daemon=True)
        self.job = Job(Processes(address, count, number, arrival_seconds=seconds))
        self.error: BaseException | None = None
        ARRIVING.append(self)
        self.start()

    def run(self) -> None:
        try:
            self.job.meet()
        except BaseException as error:
            self.error = error

    def has_come(self) -> bool:
        self.join(30)
        return self.error is None and self.job.hosts == [socket.gethostname()] * self.job.processes.num_processes

    def ended(self) -> str:
        """The error, once it has ended."""
        self.join(30)
        assert self.error is not None
        return str(self.error)


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(job, "_LOOK_SECONDS", 0.02)
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda *_, **__: None)
    yield free_address()
    for one in ARRIVING:
        one.job._deadline = 0.0
        one.job._over.set()  # or else a job would end this process when the next one leaves
    for one in ARRIVING:
        one.job.leave()
        one.join(30)
    ARRIVING.clear()
    until(lambda: not [thread for thread in threading.enumerate() if thread.name == "job"])


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_all_arrive(address: str, order: tuple[int, ...]) -> None:
    for one in [Arriving(address, number) for number in order]:
        assert one.has_come()


def test_a_wait_says_for_whom(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every process says it, again and again: those that have come, those that look for process 0."""
    said = list[str]()
    monkeypatch.setattr(job, "SAY_SECONDS", 0.1)
    monkeypatch.setattr(job, "say", said.append)
    found = [Arriving(address, 2, 4)]
    refused = f"process 2 waits for process 0 (Connection refused), at {address}, for 2"
    until(lambda: sum(line.startswith(refused) for line in said) >= 2)
    found += [Arriving(address, 0, 4)]
    until(lambda: sum(line.startswith(f"process 0 waits for processes 1, 3 of 4, at {address}") for line in said) >= 2)
    until(lambda: any(line.startswith("process 2 waits with process 0 for processes 1, 3, at ") for line in said))
    found += [Arriving(address, number, 4) for number in (1, 3)]
    for one in found:
        assert one.has_come()


def test_who_does_not_come_is_named_to_all(address: str) -> None:
    found = [Arriving(address, number, 4, 1.0 if number == 0 else 30) for number in (0, 2)]
    for one in found:
        assert one.ended().startswith(f"after 1 s processes 1, 3 of 4 have not arrived at {address}; start them with ")
        assert isinstance(one.error, PeerLostError)


def test_who_ends_while_it_waits_is_waited_for_again(address: str) -> None:
    first, second = Arriving(address, 0), Arriving(address, 1)
    until(lambda: first.job._cards)
    second.job._deadline = 0.0
    second.job._to_first.close()  # type: ignore[union-attr]
    until(lambda: not first.job._cards)
    assert first.is_alive()
    first.job._deadline = 0.0
    assert "processes 1, 2 of 3 have not arrived" in first.ended()


def test_a_process_0_that_does_not_come(address: str) -> None:
    alone = Arriving(address, 1, seconds=0.2)
    assert alone.ended().startswith(f"process 1 cannot reach process 0 at {address} (Connection refused) after 0 s of ")
    assert isinstance(alone.error, PeerLostError)


def test_two_with_one_number(address: str) -> None:
    found = [Arriving(address, number) for number in (0, 1, 1)]
    for one in found:
        assert one.ended().startswith("two processes have --process_id=1: pid ")
        assert one.ended().endswith("number them from 0 to 2")
        assert type(one.error) is UserError


def test_a_second_one_that_comes_late_finds_no_process_0(address: str) -> None:
    """A launcher that starts a host anew does not wait until the job has noticed that the old one is silent."""
    for one in [Arriving(address, number) for number in range(3)]:
        assert one.has_come()
    host, port = split_address(address)
    with socket.create_server((host, port)) as server:  # as JAX listens there, and hangs up
        late = Arriving(address, 1, seconds=0.5)
        server.accept()[0].close()
        late.job._deadline = 0.0
        assert "a job whose processes have all arrived takes no other" in late.ended()
        assert isinstance(late.error, PeerLostError)


def test_a_second_one_that_comes_when_all_are_counted_is_no_part_of_the_job(address: str) -> None:
    first, counted = Arriving(address, 0), threading.Event()
    tell = first.job._tell
    first.job._tell = lambda **content: counted.wait(30) and tell(**content)  # type: ignore[method-assign]
    found = [Arriving(address, number) for number in (1, 2)]
    until(lambda: first.job._are_counted)
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=first.job._hear, args=(line.Line(theirs),))
    thread.start()
    ours.sendall(json.dumps(found[0].job._card).encode() + b"\n")
    assert ours.recv(10) == b""
    ours.close()
    thread.join(30)
    counted.set()
    for one in [first, *found]:
        assert one.has_come()
    assert len(first.job._cards) == 2


def test_another_number_of_processes(address: str) -> None:
    for one in [Arriving(address, 0), Arriving(address, 1, count=4)]:
        assert "expects 4 processes, process 0 3; start all alike" in one.ended()
        assert type(one.error) is UserError


@pytest.mark.parametrize("number", [0, 1])
def test_one_that_ends_while_it_waits_ends_all(address: str, number: int) -> None:
    found = {one: Arriving(address, one) for one in (0, 1)}
    until(lambda: found[0].job._cards)
    found[number].job.fail("interrupted", 130)
    other = found[1 - number]
    assert f"process {number} on " in other.ended()
    assert "has failed: interrupted" in other.ended()
    assert isinstance(other.error, Interrupted)


def test_strangers_end_nothing(address: str) -> None:
    first = Arriving(address, 0)
    for text in (b"", b"GET / HTTP/1.1\r\n\r\n", b"{}\n", b'{"number": "x", "of": 3}\n', b"x" * 2_000_000, b"\xff\n"):
        until(lambda: connected(address, text))  # noqa: B023
    assert first.is_alive()
    assert not first.job._cards
    found = [Arriving(address, number) for number in (1, 2)]
    for one in [first, *found]:
        assert one.has_come()


def connected(address: str, text: bytes) -> bool:
    """Whether somebody listens; then the text was sent to it."""
    try:
        with socket.create_connection(split_address(address)) as connection:
            connection.sendall(text)
    except ConnectionRefusedError:
        return False
    except OSError:  # it has hung up
        pass
    return True


# ---- Addresses ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["host", "host:", ":8476", "host:0", "host:70000", "host:x", "x" * 70 + ".org:1"])
def test_addresses(address: str) -> None:
    with pytest.raises(UserError, match="HOST:PORT is needed"):
        split_address(address)


def test_a_port_that_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line, "PORT_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        first = Arriving(f"127.0.0.1:{server.getsockname()[1]}", 0)
        said = r"cannot listen at .* \(Address already in use\); wait until .* another port"
        assert re.fullmatch(said, first.ended())
        assert type(first.error) is UserError


NAMES = {
    "this": ("10.0.0.9", "127.0.0.1"),
    "debian": ("127.0.1.1",),
    "nat": ("203.0.113.7",),
}


@pytest.mark.parametrize(
    ("host", "own"),
    [("127.0.0.1", True), ("127.0.1.1", True), ("localhost", True), ("this", True)]
    + [(name, False) for name in ("debian", "nat", "unknown")],
)
def test_whether_a_name_is_this_machine(monkeypatch: pytest.MonkeyPatch, host: str, own: bool) -> None:
    """Only then does process 0 listen at that address alone."""

    def resolve(name: str, *_: Any, **__: Any) -> list[Any]:
        addresses = NAMES.get(name, ("127.0.0.1",) if name == "localhost" else (name,) if name[0].isdigit() else ())
        if not addresses:
            raise socket.gaierror(-2, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(
        processes, "_can_bind", lambda family, address: address[0] in ("10.0.0.9", "127.0.0.1", "127.0.1.1")
    )
    assert (own_address(host) is not None) == own
