"""Disks that are small, full or read-only, and processes with little: what machines do to a job."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

MIB = 2**20


def mount(*arguments: str | Path) -> None:
    """Run ``mount``; skip the test where that is not allowed."""
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"needs the right to mount: {done.stderr.strip()}")


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[None]:
    """Have ``folder``, which is made, hold ``size`` bytes."""
    folder.mkdir()
    mount("-t", "tmpfs", "-o", f"size={size}", "none", folder)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def used(disk: Path) -> int:
    """Bytes."""
    return shutil.disk_usage(disk).used


def resize(disk: Path, free: int) -> None:
    """Leave ``free`` bytes on a small disk, whoever writes to it meanwhile."""
    while True:
        command = ["mount", "-o", f"remount,size={used(disk) + free}", disk]
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            return


@contextlib.contextmanager
def read_only(folder: Path, twin: Path) -> Iterator[None]:
    """Let nobody write below ``folder``, not even root, but into files that are open already.

    Args:
      twin: a place beside the disk, for a second view of the folder.
    """
    twin.mkdir()
    mount("--bind", folder, twin)
    mount("-o", "remount,bind,ro", twin)
    mount("--bind", twin, folder)  # at once, files of it that are open for writing or not
    try:
        yield
    finally:
        for place in (folder, twin):
            subprocess.run(["umount", "--lazy", place], check=True)
        twin.rmdir()


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Let nobody make, rename or remove a file in ``folder``, not even root."""
    lock, free = (["chattr", "+i"], ["chattr", "-i"]) if os.geteuid() == 0 else (["chmod", "a-w"], ["chmod", "u+w"])
    done = subprocess.run([*lock, folder], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"needs a file system that can lock a folder: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run([*free, folder], check=True)


def limit(process: int, which: int, value: int) -> None:
    """Change the limit ``which`` (``resource.RLIMIT_...``) of a running process; nothing if it has ended."""
    with contextlib.suppress(ProcessLookupError):
        resource.prlimit(process, which, (value, resource.prlimit(process, which)[1]))


def open_files(process: int) -> int:
    """Return the number of files that a process has open; 0 if it has ended."""
    try:
        return len(os.listdir(f"/proc/{process}/fd"))
    except OSError:
        return 0
