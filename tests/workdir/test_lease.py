"""A folder of an object store has one holder, also where several begin at once, and a dead one is followed."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from bert_jax.errors import UserError
from bert_jax.storage.remote import RemotePath
from bert_jax.workdir import lease
from bert_jax.workdir.lease import Lease
from bert_jax.workdir.run_record import only_writer


class Notes(list[str]):
    """What a lease has said."""

    def __call__(self, line: str) -> None:
        self.append(line)


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(lease, "BEAT_SECONDS", 0.02)
    monkeypatch.setattr(lease, "SILENCE_SECONDS", 0.5)
    monkeypatch.setattr(lease, "LOOK_SECONDS", 0.01)
    create, one = RemotePath.create_bytes, threading.Lock()

    def whole(self: RemotePath, data: bytes) -> None:  # the store in memory looks and writes, which threads may share
        with one:
            create(self, data)

    monkeypatch.setattr(RemotePath, "create_bytes", whole)
    url = f"memory://{uuid.uuid4().hex}/run"
    yield url
    with contextlib.suppress(FileNotFoundError):
        fsspec.filesystem("memory").rm(url, recursive=True)


def left_by(folder: str, **others: Any) -> None:
    """A lease of a process that ended without letting go."""
    content = {"id": "other", "beats": 7, "released": False, "host": "far", "pid": 4711, **others}
    (RemotePath(folder) / "lease" / "00000003.json").write_text(json.dumps(content))


def numbers(folder: str) -> list[str]:
    return (RemotePath(folder) / "lease").names()


def test_a_second_run_is_refused_and_the_holder_is_named(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    with only_writer(folder):
        (RemotePath(folder) / "run.json").write_text("{}")
        with pytest.raises(UserError, match=r"is in use by process \d+ on .*; wait for it"), only_writer(folder):
            raise AssertionError("two hold it")
        assert numbers(folder) == ["00000001.json"]
    assert "to see whether it lives" in capsys.readouterr().err
    with only_writer(folder):  # it has let go, under a number that is not used again
        assert numbers(folder) == ["00000002.json"]
    assert not capsys.readouterr().err


def test_a_run_that_is_refused_leaves_nothing(folder: str) -> None:
    with pytest.raises(UserError, match="no such thing"), only_writer(folder):
        raise UserError("no such thing")
    assert not RemotePath(folder).exists()


def test_a_silent_holder_is_followed(folder: str) -> None:
    left_by(folder)
    notes = Notes()
    begun = time.monotonic()
    with Lease(folder, notes, notes):
        assert time.monotonic() - begun >= lease.SILENCE_SECONDS
        assert numbers(folder) == ["00000004.json"]
        assert len(notes) == 1
        assert "held by process 4711 on far; waiting" in notes[0]


def test_one_that_died_on_this_machine_is_followed_at_once(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "SILENCE_SECONDS", 60.0)
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    own = {"machine": lease._this_process()["machine"], "started": lease._started(process.pid), "pid": process.pid}
    left_by(folder, **own)
    assert not lease._died_here(own)
    process.communicate(b"\n")
    assert lease._died_here(own)
    notes = Notes()
    with Lease(folder, notes, notes):
        assert not notes


def test_of_many_that_begin_at_once_one_holds_it(folder: str) -> None:
    left_by(folder)
    held: list[int] = []
    refused: list[str] = []
    over = threading.Event()

    def begin(number: int) -> None:
        try:
            with Lease(folder, Notes(), refused.append):
                held.append(number)
                over.wait(30)
        except UserError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=begin, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    while len(held) + len(refused) < len(threads):
        assert any(thread.is_alive() for thread in threads)
        time.sleep(0.01)
    over.set()
    for thread in threads:
        thread.join()
    assert len(held) == 1
    assert all("is in use by process" in text for text in refused)


def test_a_holder_that_was_taken_for_dead_hears_of_it(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = Notes()
    slow, left = Lease(folder, Notes(), lost), contextlib.ExitStack()
    monkeypatch.setattr(lease, "BEAT_SECONDS", 2.0)
    left.enter_context(slow)
    with Lease(folder, Notes(), Notes()):
        monkeypatch.setattr(lease, "BEAT_SECONDS", 0.02)
        slow._thread.join(30)
        assert len(lost) == 1
        assert "was taken over by process" in lost[0]
        left.close()  # changes nothing
        assert numbers(folder) == ["00000002.json"]


def test_a_store_that_cannot_create_if_absent_is_named(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It overwrites, or knows no such request."""
    pipe = MemoryFileSystem.pipe_file
    monkeypatch.setattr(
        MemoryFileSystem, "pipe_file", lambda self, path, value, mode="overwrite": pipe(self, path, value)
    )
    notes = Notes()
    with Lease(folder, notes, notes):
        assert len(notes) == 1
        assert "this store cannot create an object only if it is absent" in notes[0]

    def unknown(self: Any, path: str, value: bytes, mode: str = "overwrite") -> None:
        if mode == "create":
            raise OSError(38, "Function not implemented")
        pipe(self, path, value)

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", unknown)
    with Lease(folder, notes, notes):
        assert len(notes) == 2


def test_a_store_that_cannot_be_written_is_one_line(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any, *_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", refuse)
    with (
        pytest.raises(UserError, match=r"cannot write memory://.*/run: Permission denied"),
        Lease(folder, Notes(), Notes()),
    ):
        raise AssertionError("it holds it")
