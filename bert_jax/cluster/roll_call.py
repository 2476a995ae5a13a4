"""All processes of a job know each other: who has come, who has gone, who stands still.

JAX's collectives do not tell who is missing: the others wait in them, some for ever. So every process keeps a line open
to process 0, beside JAX, on the port before the coordinator's. A process that dies closes its line at once; one that is
frozen falls silent; one that is stuck says so with the age of its last step. Process 0 then names it to all the others,
which end themselves with exit code ``PEER_LOST`` for the launcher to start the job again.

Messages are JSON, one a line. No part of this file knows JAX.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NoReturn

from bert_jax.cluster import desk
from bert_jax.cluster.desk import FIRST_SECONDS, Call, Desk, as_line, split_address
from bert_jax.cluster.exit_codes import PEER_LOST
from bert_jax.errors import PeerLostError

WATCHED_TIMES = 2.0  # this many heartbeats' time without a beat end a process from within
END = "end"  # what all wait for before the first of them leaves
TIMES_LONGEST = 5.0  # what was done before may take this many times as long as it ever took, or the heartbeat's time
# These may always take so long: compilers and stores are not as quick the second time, and to read the first row of an
# epoch or a phase may mean to plan it.
UNEVEN_SECONDS = 900.0
UNEVEN = ("compiling", "first step", "restoring", "reading", "saving", "finishing")


class Line:
    """A process's line to process 0, which it has too. ``Line.open`` is that of this process, if any."""

    open: ClassVar[Line | None] = None

    def __init__(self, call: Call, stop: Callable[[str, int], Any] | None = None):
        """``stop`` is called, from a thread, with the reason for which the job cannot go on and the exit code; it ends
        the process.

        Raises:
          PeerLostError: process 0 cannot be reached.
          UserError: its port cannot be had.
        """
        self._call, self._stop = call, stop or leave_at_once
        self.num_processes, self.process_id = call.num_processes, call.process_id
        self._desk = Desk(call) if call.process_id == 0 else None
        self._now = 0, "starting", time.monotonic(), 0  # step, state, since when, how many before; replaced as one
        self._longest: dict[str, float] = {}
        self._all: list[dict[str, Any]] | None = None
        self._passed: dict[str, list[str]] = {}
        self._changed = threading.Condition()
        self._ending = self._stopping = False
        self._lock = threading.Lock()
        self._socket, self._heard = self._connect(), time.monotonic()

    def gather(self, card: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Tell of this process, wait for all; what each told, by its number."""
        told = {"process_id": self._call.process_id, "num_processes": self._call.num_processes}
        self._send({**card, **told, "host": socket.gethostname(), "pid": os.getpid()})
        for work in (self._listen, self._beat):
            threading.Thread(target=work, daemon=True, name="roll-call").start()
        with self._changed:
            self._changed.wait_for(lambda: self._all is not None)
        assert self._all is not None
        return self._all

    def wait(self, name: str, holds: str = "") -> None:
        """Until all processes have come to this point of the program, each holding the same."""
        self._pass(name, holds, alike=True)

    def exchange(self, name: str, holds: str) -> list[str]:
        """What each process holds, by its number, once all have come."""
        return self._pass(name, holds, alike=False)

    def _pass(self, name: str, holds: str, alike: bool) -> list[str]:
        self._send({"waits": name, "holds": holds, "alike": alike})
        with self._changed:
            self._changed.wait_for(lambda: name in self._passed)
        return self._passed[name]

    def at(self, step: int, state: str) -> None:
        """The process gets on: it is at ``step``, doing ``state``."""
        (before, left, since, moves), now = self._now, time.monotonic()
        self._longest[left] = max(self._longest.get(left, 0.0), now - since)
        # Who tells of a save may know only the step that was logged last.
        self._now = max(step, before), state, now, moves + 1

    def fail(self, error: str, code: int) -> None:
        """Tell the others that this process ends by an error with an exit code."""
        self._ending = True
        self._send({"failed": error, "code": code})
        if self._desk is not None:
            time.sleep(desk.BEAT_SECONDS)  # for the desk to pass it on

    def leave(self) -> None:
        """This process has done its work."""
        self._ending = True
        self._send({"bye": True})
        self.close()

    def close(self) -> None:
        """Hang up."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _connect(self) -> socket.socket:
        deadline = time.monotonic() + self._call.arrival_seconds
        while True:
            try:
                return socket.create_connection(split_address(self._call.address), timeout=None)
            except OSError as error:
                if time.monotonic() > deadline:
                    raise PeerLostError(
                        f"process {self._call.process_id} cannot reach process 0 at {self._call.address} "
                        f"({error.strerror or error}) after {self._call.arrival_seconds:.0f} s of trying; check that "
                        "process 0 runs, --coordinator, and that the network lets that port and the next one through"
                    ) from None
                time.sleep(min(desk.BEAT_SECONDS, self._call.arrival_seconds / 10))

    def _beat(self) -> None:
        while not (self._ending or self._stopping):
            if self._stop is leave_at_once:  # where no thread can run any more, not even this one
                faulthandler.dump_traceback_later(WATCHED_TIMES * self._call.heartbeat_seconds, exit=True)
            step, state, since, moves = self._now
            where = {"step": step, "moves": moves, "state": state, "age": time.monotonic() - since}
            self._send({**where, "limit": self._limit(state)})
            if (silence := time.monotonic() - self._heard) > self._call.heartbeat_seconds:
                self._end(f"process 0 at {self._call.address} has been silent for {silence:.0f} s", PEER_LOST)
                return
            time.sleep(desk.BEAT_SECONDS)
        if self._ending and self._stop is leave_at_once:
            faulthandler.cancel_dump_traceback_later()

    def _end(self, reason: str, code: int) -> None:
        self._stopping = True
        if self._stop is leave_at_once and reason.startswith(f"process {self.process_id} on "):
            faulthandler.dump_traceback(all_threads=True)  # where it stands
        self._stop(reason, code)

    def _limit(self, state: str) -> float:
        """Seconds that the process may stand still."""
        longest = self._longest.get(state)
        least = UNEVEN_SECONDS if state in UNEVEN else self._call.heartbeat_seconds
        return FIRST_SECONDS if longest is None else max(least, TIMES_LONGEST * longest)

    def _listen(self) -> None:
        reason, code = f"process 0 at {self._call.address} is gone", PEER_LOST
        with contextlib.suppress(OSError, ValueError), self._socket.makefile("r", encoding="utf-8") as lines:
            for line in lines:
                message, self._heard = json.loads(line), time.monotonic()
                if "stop" in message:
                    reason, code = message["stop"], message["code"]
                    break
                with self._changed:
                    self._all = message.get("all", self._all)
                    if "passed" in message:
                        self._passed[message["passed"]] = message["holds"]
                    self._changed.notify_all()
        self._socket.close()
        if not self._ending and END not in self._passed:
            self._end(reason, code)

    def _send(self, message: Mapping[str, Any]) -> None:
        with self._lock, contextlib.suppress(OSError):  # a closed line is for ``_listen`` to tell of
            self._socket.sendall(as_line(message))


def leave_at_once(reason: str, code: int) -> NoReturn:
    """End the process without its exit handlers, which wait for the others."""
    print(f"error: {reason}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(code)
