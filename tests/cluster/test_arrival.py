"""How the processes of a job meet in the workdir: real files between threads, each with what a process has."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from bert_jax.cluster import arrival, processes
from bert_jax.cluster.arrival import Arrival
from bert_jax.cluster.processes import Processes, check_port, is_own, split_address
from bert_jax.errors import Interrupted, PeerLostError, UserError
from tests.cluster.jobs import free_address, until

SAME = {"jax": "1.0", "config": '{"seed": 0}'}


class Arriving(threading.Thread):
    """A process that arrives: ``hosts`` is what it got, ``error`` what it raised."""

    def __init__(self, meeting: Meeting, number: int, count: int, same: Mapping[str, str], seconds: float):
        super().__init__(daemon=True)
        place = Processes(meeting.address, count, number, arrival_seconds=seconds)
        self.arrival = Arrival(place, str(meeting.workdir), same)
        self.hosts: list[str] | None = None
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.hosts = self.arrival.wait()
        except BaseException as error:
            self.error = error

    def ended(self) -> str:
        """The error, once it has ended."""
        self.join(30)
        assert self.error is not None
        return str(self.error)


class Meeting:
    def __init__(self, workdir: Path | str, address: str, count: int = 3):
        self.workdir, self.address, self._count = workdir, address, count

    def process(
        self, number: int, count: int | None = None, same: Mapping[str, str] = SAME, seconds: float = 30
    ) -> Arriving:
        return Arriving(self, number, count or self._count, same, seconds)

    def has_a_card(self) -> bool:
        return any(arrival.CARD.fullmatch(path.name) for path in Path(self.workdir).glob(".arrival/*"))


@pytest.fixture
def meeting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Meeting]:
    """Process 0 of it can be reached."""
    monkeypatch.setattr(arrival, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(arrival, "REMOTE_LOOK_SECONDS", 0.02)
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield Meeting(tmp_path / "new" / "run", f"127.0.0.1:{server.getsockname()[1]}")


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
@pytest.mark.parametrize("remote", [False, True], ids=["folder", "store"])
def test_all_arrive(meeting: Meeting, order: tuple[int, ...], remote: bool, tmp_path: Path) -> None:
    if remote:
        meeting.workdir = f"memory://arrival/{tmp_path.name}"
    found = {number: meeting.process(number) for number in order}
    for one in found.values():
        one.join(30)
    assert [one.hosts for one in found.values()] == [[socket.gethostname()] * 3] * 3
    for one in found.values():
        one.arrival.close()
    assert not list(tmp_path.iterdir())  # process 0 removes what it has made


def test_a_folder_with_a_run_keeps_it(meeting: Meeting, tmp_path: Path) -> None:
    meeting.workdir = tmp_path
    (tmp_path / "metrics.jsonl").write_text("{}")
    found = [meeting.process(number) for number in range(3)]
    for one in found:
        one.join(30)
    for one in found:
        one.arrival.close()
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_what_an_earlier_start_left_counts_for_nothing(meeting: Meeting) -> None:
    earlier = [meeting.process(number) for number in range(3)]
    for one in earlier:
        one.join(30)
    again = {number: meeting.process(number) for number in (1, 2)}
    again[1].join(0.3)
    assert again[1].is_alive()  # the folder names others
    again[0] = meeting.process(0)
    for one in again.values():
        one.join(30)
        assert one.hosts is not None


def test_a_wait_says_for_whom(meeting: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every process says it, again and again: those that have come, those that look for process 0."""
    said = list[str]()
    monkeypatch.setattr(arrival, "SAY_SECONDS", 0.1)
    monkeypatch.setattr(arrival, "say", said.append)
    found = [Arriving(meeting, 2, 4, SAME, 30)]
    place = meeting.workdir / arrival.FOLDER  # type: ignore[operator]
    until(lambda: sum(line.startswith(f"process 2 waits for process 0, in {place}, for 2") for line in said) >= 2)
    found += [Arriving(meeting, 0, 4, SAME, 30)]
    until(
        lambda: sum(line.startswith(f"process 0 waits for processes 1, 3 of 4, in {place}, for ") for line in said) >= 2
    )
    until(lambda: any(line.startswith("process 2 waits with process 0 for processes 1, 3, in ") for line in said))
    found += [Arriving(meeting, number, 4, SAME, 30) for number in (1, 3)]
    for one in found:
        one.join(30)
        assert one.hosts is not None
    for one in found:  # process 0 takes the answer away, so all have to have read it
        one.arrival.close()


def test_who_does_not_come_is_named(meeting: Meeting) -> None:
    found = [Arriving(meeting, number, 4, SAME, 0.5 if number == 0 else 30) for number in (0, 2)]
    for one in found:
        assert "processes 1, 3 of 4 have not arrived in " in one.ended()
        assert isinstance(one.error, PeerLostError)


def test_a_process_0_that_does_not_come(meeting: Meeting) -> None:
    alone = meeting.process(1, seconds=0.2)
    assert "process 1 finds no process 0 that waits for it in " in alone.ended()
    assert isinstance(alone.error, PeerLostError)
    alone.arrival.fail(alone.ended(), 76)
    assert not Path(meeting.workdir).exists()


def test_a_process_0_that_cannot_be_reached_or_waits_elsewhere(meeting: Meeting) -> None:
    first = meeting.process(0)
    elsewhere = Meeting(meeting.workdir, free_address())
    lost = elsewhere.process(1, seconds=0.5)
    assert "process 1 cannot reach process 0 at 127.0.0.1:" in lost.ended()
    assert "(Connection refused) after 0 s of trying; check that process 0 runs, --coordinator" in lost.ended()
    assert first.is_alive()
    first.arrival.fail("interrupted", 130)


def test_two_with_one_number(meeting: Meeting) -> None:
    found = [meeting.process(number) for number in (0, 1, 1)]
    for one in found:
        assert one.ended().startswith("two processes have --process_id=1: pid ")
        assert one.ended().endswith("number them from 0 to 2")
        assert type(one.error) is UserError


def test_a_second_one_that_comes_late_never_connects(meeting: Meeting) -> None:
    """A launcher that starts a host anew does not wait until the job has noticed that the old one is silent."""
    found = [meeting.process(number) for number in range(3)]
    for one in found:
        one.join(30)
    late = meeting.process(1, seconds=0.3)
    assert "a job whose processes have all arrived takes no other" in late.ended()
    assert isinstance(late.error, PeerLostError)
    assert all(one.hosts for one in found)


def test_another_number_of_processes(meeting: Meeting) -> None:
    found = [meeting.process(0), meeting.process(1, count=4)]
    for one in found:
        assert "expects 4 processes, process 0 3; start all alike" in one.ended()
        assert type(one.error) is UserError


def test_other_flags(meeting: Meeting) -> None:
    found = [meeting.process(n, same=SAME | ({"config": '{"seed": 1}'} if n == 2 else {})) for n in range(3)]
    for one in found:
        assert one.ended().startswith("the config on process 2 on ")
        assert one.ended().endswith("seed is 1, not 0; make them the same")


@pytest.mark.parametrize("number", [0, 1])
def test_one_that_ends_while_it_waits_ends_all(meeting: Meeting, number: int) -> None:
    found = {one: meeting.process(one) for one in (0, 1)}
    until(meeting.has_a_card)
    found[number].arrival.fail("interrupted", 130)
    other = found[1 - number]
    assert f"process {number} on " in other.ended()
    assert "has failed: interrupted" in other.ended()
    assert isinstance(other.error, Interrupted)


def test_process_0_ends_only_when_the_others_have_read_why(meeting: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {0: meeting.process(0)}
    monkeypatch.setattr(arrival, "LOOK_SECONDS", 0.5)  # the others look less often
    found |= {1: meeting.process(1, count=4), 2: meeting.process(2)}
    found[0].arrival.fail(found[0].ended(), 2)
    for one in found.values():
        assert "expects 4 processes" in one.ended()


def test_a_process_0_that_cannot_begin_disturbs_no_other(meeting: Meeting) -> None:
    found = {number: meeting.process(number) for number in (0, 1)}
    until(meeting.has_a_card)
    second = Arrival(Processes(meeting.address, 3, 0), str(meeting.workdir), SAME)
    second.fail("cannot listen", 2)
    found[2] = meeting.process(2)
    for one in found.values():
        one.join(30)
        assert one.hosts is not None


def test_a_workdir_that_cannot_be_made(meeting: Meeting, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    meeting.workdir = tmp_path / "file"
    assert "cannot write " in meeting.process(0).ended()


# ---- Addresses ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["host", "host:", ":8476", "host:0", "host:70000", "host:x", "x" * 70 + ".org:1"])
def test_addresses(address: str) -> None:
    with pytest.raises(UserError, match="HOST:PORT is needed"):
        split_address(address)


def test_a_port_that_is_taken(meeting: Meeting) -> None:
    with pytest.raises(UserError, match=r"cannot listen at .* \(Address already in use\); wait until .* another port"):
        check_port(meeting.address, seconds=0.1)
    check_port(free_address(), seconds=0.1)


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
    assert is_own(host) == own
