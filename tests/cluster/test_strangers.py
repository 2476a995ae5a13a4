"""Strangers at the port of the heartbeat: a job that waits and one that runs hear none of them, and say so once."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bert_jax.cluster import handshake, heartbeat_client, heartbeat_server, job_key, rendezvous
from bert_jax.cluster.exit_codes import BAD_INPUT
from bert_jax.cluster.job_key import KEY_FILE, Key, KeyFile, NoKeyError, read_key
from bert_jax.cluster.messages import BadMessage, Beat, as_line, parse
from bert_jax.cluster.rendezvous import Rendezvous
from bert_jax.errors import PeerLostError, UserError
from tests.cluster import strangers
from tests.cluster.job import Job, until

NewJob = Callable[..., Job]


def recorded_join(job: Job, monkeypatch: pytest.MonkeyPatch) -> tuple[heartbeat_client.HeartbeatClient, bytes]:
    """Process 1, which joins, and what it sent to prove itself."""
    sent: list[bytes] = []

    def recording(message: Any) -> bytes:
        line = as_line(message)
        if type(message).__name__ == "Join":
            sent.append(line)
        return line

    monkeypatch.setattr(handshake, "as_line", recording)
    return job.waiting(1), sent[-1]


def test_no_stranger_ends_a_job(
    new_job: NewJob, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The attacks one after the other on a job that waits for its second process; then on the job that runs."""
    monkeypatch.setattr(handshake, "PROOF_SECONDS", 1.0)
    monkeypatch.setattr(heartbeat_server, "UNPROVEN", 50)
    monkeypatch.setattr(heartbeat_server, "NOISE_SECONDS", 3600.0)
    job, rng = new_job(2, heartbeat_seconds=120.0), random.Random(0)
    first = job.waiting(0)
    held = [line for attack in strangers.ATTACKS.values() for line in attack(job.address, rng)]
    assert first._server is not None
    assert len(first._server._strangers._there) <= 50
    held += strangers.silence(job.address, rng) + strangers.half_closed_by_the_other_half(job.address, rng)
    held += strangers.byte_by_byte(job.address, rng)  # after these come none for whom they would be dropped
    second, proof_of_second = recorded_join(job, monkeypatch)
    until(lambda: first._all_here and second._all_here)
    held += [line for attack in strangers.ATTACKS.values() for line in attack(job.address, rng)]
    held += strangers.say(job.address, proof_of_second.strip())
    assert strangers.are_hung_up(held)
    passed = threading.Thread(target=second.exchange, args=("a point", "2"), daemon=True)
    passed.start()
    assert first.exchange("a point", "1") == ["1", "2"]
    assert not job.stops
    said = capfd.readouterr().err
    assert "Traceback" not in said
    assert len(said.splitlines()) == 1
    assert f" to {job.address} from outside of this job; the last: 127.0.0.1 " in said


def test_a_proof_is_good_once(new_job: NewJob, monkeypatch: pytest.MonkeyPatch) -> None:
    job = new_job(3)
    first = job.waiting(0)
    second, line = recorded_join(job, monkeypatch)
    assert strangers.are_hung_up(strangers.say(job.address, line.strip(), *strangers.as_json(strangers.FAILED)))
    as_another = json.loads(line) | {"process_id": 2}
    assert strangers.are_hung_up(strangers.say(job.address, *strangers.as_json(as_another)))
    assert first._server is not None
    assert sorted(first._server._members) == [0, 1]
    job.waiting(2)
    until(lambda: first._all_here and second._all_here)
    assert not job.stops


def test_who_waits_does_not_believe_a_stranger_in_the_place_of_process_0(new_job: NewJob, address: str) -> None:
    """Though it says whatever process 0 would say."""
    job = new_job(2, arrival_seconds=0.3)
    host, port = rendezvous.split_address(address)
    key_file = KeyFile(str(job.workdir))
    said = [{"kind": "Challenge", "nonce": "n", "key": key_file.key.name}, {"kind": "Welcome", "proof": "0" * 64}]
    said += [{"kind": "Stop", "reason": "so it is", "code": BAD_INPUT}]

    def answer(server: socket.socket) -> None:
        with contextlib.ExitStack() as opened, contextlib.suppress(OSError):
            while True:
                line = opened.enter_context(server.accept()[0])
                line.sendall(b"\n".join(strangers.as_json(*said)) + b"\n")

    with socket.create_server((host, port)) as server:
        answering = threading.Thread(target=answer, args=(server,), daemon=True)
        answering.start()
        with pytest.raises(PeerLostError, match="does not prove to be process 0 of this job"):
            job.client(1)
        server.shutdown(socket.SHUT_RDWR)
        answering.join()


@pytest.mark.parametrize(
    "line",
    [
        strangers.as_json({**strangers.BEAT, "step": "x"})[0],
        strangers.as_json({**strangers.BEAT, "age": float("nan")})[0],
        b'{"kind": "Beat", "step": 1, "moves": 1, "state": "s", "age": 0, "limit": 1e400}',
        b"[" * 10_000,
        b"x" * (2**22 + 1),
        b'{"kind": "AllHere"}',
    ],
    ids=["a step that is a text", "NaN", "1e400", "deep nesting", "a huge line", "what process 0 says"],
)
def test_a_process_that_talks_nonsense_is_named_to_all(
    new_job: NewJob, capfd: pytest.CaptureFixture[str], line: bytes
) -> None:
    """Another version of the program, say; it has proved to be of the job, so the job ends, in one line."""
    job = new_job(3)
    clients = job.clients()
    with clients[1]._lock:
        clients[1]._socket.sendall(line + b"\n")
    until(lambda: len(job.stops) == 3)
    assert {code for _, code in job.stops.values()} == {BAD_INPUT}
    assert all(reason.startswith("process 1 on ") for reason, _ in job.stops.values())
    assert job.stops[1][0].endswith("; install the same version everywhere")
    assert "Traceback" not in capfd.readouterr().err


def test_messages_arrive_as_they_were_sent() -> None:
    beat = Beat(2**40, 3, "saving \ud800\n\0", 0.5, 1e9)
    assert parse(as_line(beat)) == beat
    for wrong in strangers.WRONG:
        with pytest.raises(BadMessage, match="whose age is not a number from 0 on|no known kind|not JSON"):
            parse(as_line(beat).replace(b"0.5", json.dumps(wrong).encode()) if wrong not in (0.5, 1e300) else b"{}")


def test_the_key_is_of_this_start_alone_and_goes_when_all_are_there(
    new_job: NewJob, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / KEY_FILE).write_text("ab" * job_key.KEY_BYTES)  # left by a start that was killed
    job = new_job(2)
    first = job.waiting(0)
    key = read_key(tmp_path)
    assert key.secret.hex() != "ab" * job_key.KEY_BYTES
    assert stat.S_IMODE((tmp_path / KEY_FILE).stat().st_mode) == 0o600
    second = job.waiting(1)
    until(lambda: first._all_here and second._all_here)
    until(lambda: not (tmp_path / KEY_FILE).exists())
    assert key.secret.hex() not in repr(key) + capfd.readouterr().err


def test_a_process_in_another_workdir_gets_an_error(new_job: NewJob, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    job = new_job(2, arrival_seconds=2.0)
    job.waiting(0)
    with pytest.raises(
        PeerLostError, match=r"process 1 has no key of this job in .*other/.heartbeat_key \(the file is"
    ):
        job.client(1, workdir=tmp_path / "other")
    until(lambda: 0 in job.stops)
    assert "have not arrived at 127.0.0.1:" in job.stops[0][0]
    assert "(not of this job: 127.0.0.1 sent nothing, and hung up; do all have the same --workdir" in job.stops[0][0]
    assert not (tmp_path / KEY_FILE).exists()


def test_a_process_that_finds_an_old_key_waits_for_the_new_one(new_job: NewJob, tmp_path: Path) -> None:
    """A file system may show the old one for a while."""
    (tmp_path / "slow").mkdir()
    KeyFile(str(tmp_path / "slow"))
    job = new_job(2)
    first = job.waiting(0)
    threading.Timer(0.5, os.replace, (tmp_path / KEY_FILE, tmp_path / "slow" / KEY_FILE)).start()
    second = job.client(1, workdir=tmp_path / "slow")
    second.wait_for_all()
    until(lambda: first._all_here)
    assert not job.stops


def planted(folder: Path, kind: str) -> None:
    path = folder / KEY_FILE
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        (folder / "elsewhere").write_text("ab" * job_key.KEY_BYTES)
        (folder / "elsewhere").chmod(0o600)
        path.symlink_to(folder / "elsewhere")
    else:
        path.write_bytes(b"\xff" if kind == "garbage" else b"ab" * job_key.KEY_BYTES)
        path.chmod(0o640 if kind == "readable" else 0o600)
        if kind == "another's":
            os.chown(path, 12345, -1)


@pytest.mark.parametrize("kind", ["readable", "another's", "pipe", "link", "garbage"])
def test_a_key_that_a_stranger_may_have_made_is_not_believed(tmp_path: Path, kind: str) -> None:
    if kind == "another's" and os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    planted(tmp_path, kind)
    with pytest.raises(NoKeyError):
        read_key(tmp_path)
    made = KeyFile(str(tmp_path))  # replaces whatever is there
    assert read_key(tmp_path) == made.key
    made.remove()
    assert not (tmp_path / KEY_FILE).exists()


def test_a_key_leaves_nothing_behind_and_takes_nothing_away(tmp_path: Path) -> None:
    made = KeyFile(str(tmp_path / "runs" / "new"))
    made.remove()
    assert not list(tmp_path.iterdir())
    made, later = KeyFile(str(tmp_path / "run")), KeyFile(str(tmp_path / "run"))
    made.remove()  # it is that of a later start now
    assert read_key(tmp_path / "run") == later.key
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write .*file/.heartbeat_key"):
        KeyFile(str(tmp_path / "file"))


def test_a_file_system_without_rights_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = os.open
    monkeypatch.setattr(os, "open", lambda path, flags, mode=0o777: make(path, flags, 0o666))
    with pytest.raises(UserError, match="a file made for its owner alone has mode 6.. in .*; mount that file system"):
        KeyFile(str(tmp_path / "run"))
    assert not list(tmp_path.iterdir())


def test_on_a_store_the_key_is_an_object(new_job: NewJob) -> None:
    made = KeyFile("memory://strangers/run")
    assert read_key("memory://strangers/run") == made.key
    again = KeyFile("memory://strangers/run")
    assert read_key("memory://strangers/run") == again.key != made.key
    again.remove()
    with pytest.raises(NoKeyError, match="the file is not there"):
        read_key("memory://strangers/run")


def test_a_proof_is_for_one_role_one_challenge_and_one_key() -> None:
    key = Key(b"k" * 32)
    proof_of = key.proof("member", "a", "b")
    assert key.proves(proof_of, "member", "a", "b")
    for role, challenge, nonce in (("process 0", "a", "b"), ("member", "b", "a"), ("member", "a", "c")):
        assert not key.proves(proof_of, role, challenge, nonce)
    assert not Key(b"l" * 32).proves(proof_of, "member", "a", "b")
    assert not key.proves("\ud800é", "member", "\0", "\ud800")


NAMES = {
    "this": ("10.0.0.9", "127.0.0.1"),  # beside a real address, the loopback one is left out
    "debian": ("127.0.1.1",),
    "nat": ("203.0.113.7",),
}


@pytest.mark.parametrize(
    ("host", "wanted"),
    [("127.0.0.1", ["127.0.0.1"]), ("127.0.1.1", ["127.0.1.1"]), ("localhost", ["127.0.0.1"]), ("this", ["10.0.0.9"])]
    + [(name, []) for name in ("debian", "nat", "unknown")],
)
def test_the_addresses_that_process_0_listens_on(monkeypatch: pytest.MonkeyPatch, host: str, wanted: list[str]) -> None:
    def resolve(name: str, *_: Any, **__: Any) -> list[Any]:
        addresses = NAMES.get(name, ("127.0.0.1",) if name == "localhost" else (name,) if name[0].isdigit() else ())
        if not addresses:
            raise socket.gaierror(-2, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(
        rendezvous, "_is_own", lambda family, address: address[0] in ("10.0.0.9", "127.0.0.1", "127.0.1.1")
    )
    rendezvous.own_addresses.cache_clear()
    assert [address[0] for _, address in rendezvous.own_addresses(host)] == wanted
    rendezvous.own_addresses.cache_clear()


@pytest.mark.parametrize("host", ["127.0.0.1", "nat.invalid"])
def test_it_listens_there_and_nowhere_else(monkeypatch: pytest.MonkeyPatch, address: str, host: str) -> None:
    _, port = rendezvous.split_address(address)
    sockets = rendezvous.listen(f"{host}:{port}", 1.0)
    try:
        assert {listening.getsockname()[0] for listening in sockets} <= (
            {host} if host[0] == "1" else {"::", "0.0.0.0"}
        )
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
        if host[0] == "1":
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.2", port), timeout=5)
    finally:
        for listening in sockets:
            listening.close()


def test_a_name_longer_than_names_are() -> None:
    with pytest.raises(UserError, match="HOST:PORT is needed"):
        Rendezvous("x" * 70 + ".org:1234", 2, 1, "w") and rendezvous.split_address("x" * 70 + ".org:1234")
