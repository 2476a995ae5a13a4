"""Holds a folder of an object store for one process, by a lease.

A store has no locks that end with their holder. On a local disk, ``run_record.only_writer`` locks a file instead.

A lease is an object ``lease/NUMBER.json``, which the store creates only if it is absent; the process that created the
highest number holds the folder. The holder rewrites its object every ``BEAT_SECONDS``. Another process that wants the
folder watches the object. If the object changes, the holder is alive. If it stays the same for ``SILENCE_SECONDS``
(measured by the watching process, so clocks need not agree), the holder counts as dead, and the other process takes
the next number. No number is used twice.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bert_jax.errors import UserError
from bert_jax.storage import reading, retries, write_errors
from bert_jax.storage.remote import RemotePath

FOLDER = "lease"
BEAT_SECONDS = 15.0
SILENCE_SECONDS = 60.0  # a holder whose object stays the same for so long counts as dead
LOOK_SECONDS = 1.0  # the time between two looks at the holder's object


class Lease:
    """Context manager that holds ``folder`` for this process during the block.

    Args:
      note: called with a line about a wait, or about a store that cannot refuse to overwrite an object.
      lost: called from a thread, with a line, if another process has taken over the folder; it should end this process.
    """

    def __init__(self, folder: str | os.PathLike[str], note: Callable[[str], Any], lost: Callable[[str], Any]):
        self._folder, self._note, self._lost = RemotePath(folder), note, lost
        self._number, self._beats, self._id = 0, 0, uuid.uuid4().hex
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True, name="lease")

    def __enter__(self) -> Lease:
        """Take the folder. Raises ``UserError`` if another process holds it, or nothing can be written there."""
        with write_errors.explain(self._folder):
            self._take()
        return self

    def _take(self) -> None:
        """Take the folder, after waiting until the last holder is known to have gone."""
        while True:
            newest = self._newest()
            if newest and not self._has_gone(newest):
                continue
            self._number = newest + 1
            created = self._create()
            # If the object has our id, an earlier try of the same request has created it.
            if not created and (self._read(self._number) or {}).get("id") != self._id:
                continue
            if self._newest() == self._number:
                break
            self._path(self._number).unlink()  # others came and went between the look and the claim
        if not self._folder.creates or self._create():
            self._note(
                f"{self._folder}: this store cannot create an object only if it is absent; two runs that begin there "
                "at the same moment do not notice each other"
            )
        for old in self._numbers()[:-1]:
            self._path(old).unlink(missing_ok=True)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        """Release the folder.

        The object stays, so that its number is not used again, unless nothing else is in the folder.
        """
        self._stop.set()
        self._thread.join(SILENCE_SECONDS)
        with contextlib.suppress(Exception), retries.at_once():  # after a failure, our silence tells the next process
            if self._newest() != self._number:
                return
            if self._folder.names() == [FOLDER]:
                self._path(self._number).unlink()
            else:
                self._path(self._number).write_bytes(self._content(released=True))

    def _has_gone(self, number: int) -> bool:
        """Return whether the holder has released the folder or is dead.

        False means that its object is gone: look again. Raises ``UserError`` if the holder is alive.
        """
        first, start = self._read(number), time.monotonic()
        if first is None or first.get("released") or _died_here(first):
            return first is not None
        holder = _name(first)
        self._note(f"{self._folder} is held by {holder}; waiting up to {SILENCE_SECONDS:.0f} s to see whether it lives")
        while (now := self._read(number)) == first and time.monotonic() - start < SILENCE_SECONDS:
            time.sleep(LOOK_SECONDS)
        if now is not None and now != first and not now.get("released"):
            raise UserError(f"{self._folder} is in use by {holder}; wait for it, or choose another --workdir")
        return now is not None

    def _beat(self) -> None:
        while not self._stop.wait(BEAT_SECONDS):
            with contextlib.suppress(Exception), retries.at_once():  # the next beat tries again
                if (newest := self._newest()) > self._number:
                    holder = _name(self._read(newest) or {})
                    self._lost(
                        f"{self._folder} was taken over by {holder}, as this process seemed dead; end one of them"
                    )
                    return
                self._beats += 1
                self._path(self._number).write_bytes(self._content())

    def _create(self) -> bool:
        """Create the lease object. Return True if the store created it, False if it existed already."""
        path = self._path(self._number)
        try:
            path.create_bytes(self._content())
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno != errno.ENOSYS:  # ENOSYS: the store has no such request
                if path.exists():
                    return False
                raise
            path.write_bytes(self._content())
        return True

    def _content(self, released: bool = False) -> bytes:
        own = {"id": self._id, "beats": self._beats, "released": released}
        return json.dumps({**own, "host": socket.gethostname(), "pid": os.getpid(), **_this_process()}).encode()

    def _read(self, number: int) -> dict[str, Any] | None:
        """Return the content of a lease object: None if there is no such object, {} if it is not a JSON object."""
        try:
            return reading.parse_object(self._path(number).read_bytes()) or {}
        except FileNotFoundError:
            return None

    def _path(self, number: int) -> RemotePath:
        return self._folder / FOLDER / f"{number:08d}.json"

    def _numbers(self) -> list[int]:
        names = (name.removesuffix(".json") for name in (self._folder / FOLDER).names())
        return sorted(int(name) for name in names if name.isdecimal())

    def _newest(self) -> int:
        return max(self._numbers(), default=0)


def _name(holder: Mapping[str, Any]) -> str:
    return f"process {holder.get('pid')} on {holder.get('host')}"


def _this_process() -> dict[str, str]:
    """Return facts that identify this process among all past and present processes; {} if the system has none."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return {"machine": f"{boot} {os.readlink('/proc/self/ns/pid')}", "started": _started(os.getpid())}
    return {}


def _started(pid: int) -> str:
    """Return the start time of a process of this machine, in the kernel's clock ticks since boot."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def _died_here(holder: dict[str, Any]) -> bool:
    """Return whether the holder was a process of this machine that has ended."""
    if not holder.get("machine") or holder["machine"] != _this_process().get("machine"):
        return False
    try:
        return _started(int(holder["pid"])) != holder.get("started")
    except FileNotFoundError:
        return True
    except (OSError, ValueError, TypeError, KeyError):
        return False
