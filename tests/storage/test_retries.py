"""Trouble of a store that passes is waited out, lasting trouble is one line, and neither is a missing file."""

from __future__ import annotations

import contextlib
import random
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bert_jax.checkpoints.integrity import check_step
from bert_jax.cluster import exit_codes
from bert_jax.errors import PassingError, UserError
from bert_jax.storage import files, retries
from bert_jax.storage.remote import RemotePath
from bert_jax.workdir.lease import Lease
from bert_jax.workdir.steps import whole_steps
from tests.storage.faulty import PASSING, FaultyStore, HttpError


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(retries, "FIRST_WAIT", 0.001)
    monkeypatch.setattr(retries, "LONGEST_WAIT", 0.01)
    monkeypatch.setattr(retries, "GIVEN_UP_SECONDS", 0.0)
    monkeypatch.setattr(retries, "_STORES", {})
    monkeypatch.setenv(retries.SECONDS, "0.1")
    yield
    FaultyStore.heal()


@pytest.fixture
def folder() -> Iterator[RemotePath]:
    path = RemotePath(f"faulty://{uuid.uuid4().hex}/run")
    yield path
    FaultyStore.heal()
    path.rmtree()


def always(fault: str) -> None:
    FaultyStore.fault = lambda kind, path: fault


REQUESTS: dict[str, Callable[[RemotePath, Path], Any]] = {
    "exists": lambda path, local: path.exists(),
    "is_dir": lambda path, local: path.parent.is_dir(),
    "is_file": lambda path, local: path.is_file(),
    "iterdir": lambda path, local: list(path.parent.iterdir()),
    "listed": lambda path, local: path.parent.names(),
    "glob": lambda path, local: list(path.parent.glob("*")),
    "size": lambda path, local: path.size,
    "read_bytes": lambda path, local: path.read_bytes(),
    "open": lambda path, local: path.open("rb").read(),
    "get": lambda path, local: [path.get(local), local.read_bytes()][1],
    "write_bytes": lambda path, local: [path.write_bytes(b"new"), path.read_bytes()],
    "put": lambda path, local: [path.put(Path(__file__)), path.size],
    "unlink": lambda path, local: [path.unlink(), path.exists()],
    "rmtree": lambda path, local: [path.parent.rmtree(), path.exists()],
}


@pytest.mark.parametrize("name", REQUESTS)
def test_trouble_that_passes_changes_no_answer_and_lasting_trouble_is_no_answer(
    name: str, folder: RemotePath, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer() -> Any:
        FaultyStore.heal()
        (folder / "file").write_bytes(bytes(range(256)) * 100)
        FaultyStore.fault = lambda kind, path: faults.pop() if faults else None
        return REQUESTS[name](folder / "file", tmp_path / "local")

    faults: list[str] = []
    wanted = answer()
    for fault in PASSING:
        faults = [fault] * 3
        assert answer() == wanted, fault
        assert not faults
    assert len(re.findall("does not answer", capsys.readouterr().err)) == 1
    for lasting in ("503", "silent", "reset"):
        faults = [lasting] * 10_000
        with pytest.raises(
            PassingError, match="faulty://.*: the store has not answered for 0 s .*run the same command"
        ):
            answer()
    for refused in ("403",):
        faults = [refused] * 10
        with pytest.raises(UserError, match="the store refuses .*Forbidden") as raised:
            answer()
        assert exit_codes.of(raised.value) == exit_codes.BAD_INPUT


def test_a_store_that_recovers_is_said_in_two_lines(folder: RemotePath, capsys: pytest.CaptureFixture[str]) -> None:
    faults = ["503", "429", "reset"]
    FaultyStore.fault = lambda kind, path: faults.pop() if faults else None
    (folder / "file").write_bytes(b"content")
    first, second = capsys.readouterr().err.splitlines()
    assert "the store does not answer (Connection reset by peer" in first.replace("[Errno 104] ", "")
    assert "answers again, after 0 s" in second


def test_requests_share_the_time_that_trouble_may_take(folder: RemotePath) -> None:
    always("503")
    begun = time.monotonic()
    for _ in range(20):
        with pytest.raises(PassingError):
            folder.exists()
    assert time.monotonic() - begun < 20 * 0.1  # the first alone has waited
    FaultyStore.heal()
    assert not folder.exists()


def test_a_store_that_was_given_up_is_left_alone_for_a_while(
    folder: RemotePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    always("503")
    with monkeypatch.context() as patch:
        patch.setattr(retries, "GIVEN_UP_SECONDS", 60.0)
        for _ in range(2):
            asked = FaultyStore.requests
            with pytest.raises(PassingError, match="the store .* run the same command"):
                folder.exists()
    assert FaultyStore.requests == asked


def test_a_file_that_is_not_there_is_not_there(folder: RemotePath) -> None:
    for read in (folder.read_bytes, folder.open, lambda: folder.size):
        with pytest.raises(FileNotFoundError, match="faulty://.*/run"):
            read()
    folder.unlink()
    folder.rmtree()
    assert folder.names() == []
    (folder / "file").create_bytes(b"")
    with pytest.raises(FileExistsError):
        (folder / "file").create_bytes(b"")


def test_an_object_is_read_from_any_byte_on(folder: RemotePath, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bert_jax.storage.remote.BLOCK_BYTES", 64)
    monkeypatch.setenv(retries.SECONDS, "30")
    data, rng = random.Random(0).randbytes(1000), random.Random(1)
    (folder / "file").write_bytes(data)
    FaultyStore.fault = lambda kind, path: rng.choice([*[None] * 6, *PASSING])
    with (folder / "file").open("rb") as file:
        for _ in range(50):
            start, length = rng.randrange(1001), rng.randrange(200)
            file.seek(start)
            assert file.read(length) == data[start : start + length]
        file.seek(-10, 2)
        assert file.read() == data[-10:]


def test_no_step_is_missing_or_damaged_because_its_store_is_away(folder: RemotePath, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "d").write_bytes(b"array")
    files.upload(tmp_path, files.as_path(folder / "5"))
    assert whole_steps(folder) == [5]
    check_step(folder / "5")
    away = random.Random(0)
    for fault in ("503", "silent", "403"):
        for _ in range(20):
            last = away.randrange(FaultyStore.requests, FaultyStore.requests + 12)
            FaultyStore.fault = lambda kind, path, last=last, fault=fault: (
                fault if FaultyStore.requests > last else None
            )
            with contextlib.suppress(UserError):
                assert whole_steps(folder) == [5]
                check_step(folder / "5")
            FaultyStore.heal()


def test_beats_are_not_waited_for(folder: RemotePath) -> None:
    with Lease(folder, lambda line: None, lambda line: None) as lease:
        always("503")
        begun = threading.active_count()
    assert threading.active_count() <= begun
    FaultyStore.heal()
    assert not (lease._read(1) or {}).get("released")  # it was tried once; its silence says the same


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (HttpError(503), True),
        (HttpError(429), True),
        (HttpError(401), False),
        (OSError(16, "Service Unavailable"), True),  # s3fs: 503
        (OSError(121, "InternalError"), True),  # s3fs: 500
        (OSError("Forbidden: b/bucket/o"), False),  # gcsfs: 403
        (ValueError("Bad Request"), False),
        (type("HTTPClientError", (Exception,), {})(), True),  # botocore
        (type("ServerDisconnectedError", (Exception,), {"__module__": "aiohttp.client_exceptions"})(), True),
        (TimeoutError(), True),
        (IsADirectoryError(21, "a folder"), False),
    ],
)
def test_what_passes(error: Exception, passes: bool) -> None:
    assert retries._is_trouble(error) is passes


def test_a_number_of_seconds_is_needed(folder: RemotePath, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(retries.SECONDS, "long")
    always("503")
    with pytest.raises(UserError, match="BERT_JAX_STORE_SECONDS is 'long'; a number of seconds"):
        folder.exists()
