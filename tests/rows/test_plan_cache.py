"""The next build of a plan removes the files of killed builds, and no other files."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.rows import plan_cache
from bert_jax.rows.plan_cache import Blocks, PlanCache
from bert_jax.storage import files

KILLED = """
import os, signal, sys
import numpy as np
from bert_jax.rows.plan_cache import PlanCache

def make(epoch):
    yield "a", np.zeros(10, int)
    os.kill(os.getpid(), signal.SIGKILL)

PlanCache(sys.argv[1], "ab", {"a": int}, make).load(0)
"""


def make(epoch: int) -> Blocks:
    yield "a", np.arange(3)


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_a_killed_build_leaves_no_files(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, tmp_path], check=False)
    assert killed.returncode == -9
    assert len(names(tmp_path)) == 2  # half a plan and its lock
    assert PlanCache(tmp_path, "ab", {"a": int}, make).load(0)["a"].tolist() == [0, 1, 2]
    assert names(tmp_path) == {f"plans/ab/epoch-00000/{name}" for name in ("a", "PLAN_OF", "SHA256SUMS")}


def test_what_others_write_stays(tmp_path: Path) -> None:
    host = socket.gethostname()
    writers = [f"{host}.{os.getppid()}", "another-host.1"]
    folders = [tmp_path / "plans" / "ab" / f"epoch-00000.{writer}.tmp" for writer in writers]
    for folder in folders:
        folder.mkdir(parents=True)
    PlanCache(tmp_path, "ab", {"a": int}, make).load(0)
    assert all(folder.exists() for folder in folders)


def test_a_plan_that_cannot_be_opened_for_too_many_files_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    PlanCache(tmp_path, "ab", {"a": int}, make).load(0)

    def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files", "a")

    monkeypatch.setattr(files, "sha256", fail)
    with pytest.raises(OSError, match="Too many open files"):
        PlanCache(tmp_path, "ab", {"a": int}, make).load(0)
    assert capsys.readouterr().err == ""
    assert len(names(tmp_path)) == 3


def test_threads_make_a_plan_in_turn_on_a_file_system_without_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    begun, calls = threading.Event(), []

    def slow(epoch: int) -> Blocks:
        calls.append(epoch)
        yield "a", np.arange(2)
        begun.set()
        time.sleep(0.3)
        yield "a", np.array([2])

    monkeypatch.setattr(files.fcntl, "flock", no_locks)
    thread = PlanCache(tmp_path, "ab", {"a": int}, slow).prepare(0)
    assert thread is not None
    begun.wait()
    assert PlanCache(tmp_path, "ab", {"a": int}, slow).load(0)["a"].tolist() == [0, 1, 2]
    thread.join()
    assert calls == [0]


def test_a_full_disk_is_said_with_the_other_place_for_plans(tmp_path: Path) -> None:
    def full(epoch: int) -> Blocks:
        yield "a", np.arange(3)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    message = "cannot write .*epoch-00000: No space left on device; free some space .*; plans .* in .* BERT_JAX_CACHE"
    with pytest.raises(UserError, match=message):
        PlanCache(tmp_path, "ab", {"a": int}, full).load(0)


def test_a_plan_of_something_else_is_made_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def other(epoch: int) -> Blocks:
        yield "a", np.arange(3) + 10 * (epoch + 1)

    plans = tmp_path / "plans"
    PlanCache(tmp_path, "ab", {"a": int}, make).load(0)
    PlanCache(tmp_path, "cd", {"a": int}, other).load(0)
    PlanCache(tmp_path, "ab", {"a": int}, make).load(1)
    for source in ("cd/epoch-00000", "ab/epoch-00001"):
        shutil.rmtree(plans / "ab" / "epoch-00000")
        shutil.copytree(plans / source, plans / "ab" / "epoch-00000")
        assert PlanCache(tmp_path, "ab", {"a": int}, make).load(0)["a"].tolist() == [0, 1, 2]
        assert "epoch-00000 is damaged or of another run; it is made" in capsys.readouterr().err
    os.mkfifo(plans / "ab" / plan_cache.LOCK)  # to open it would wait for ever
    with pytest.raises(UserError, match="ab/lock: is a pipe, a socket or a device; remove it"):
        PlanCache(tmp_path, "ab", {"a": int}, make).load(2)
