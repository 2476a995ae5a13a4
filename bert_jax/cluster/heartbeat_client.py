"""Tells every process of a job about the other processes: which have arrived, which have left, which make no progress.

JAX's collectives do not tell which process is missing: the other processes wait in them, sometimes for ever. So every
process keeps a connection open to the heartbeat server of process 0, which is separate from JAX and uses the port
before the coordinator's. If a process dies, its connection closes at once. If it is frozen, it sends no more messages.
If it is stuck, its messages report how long ago its last progress was. Process 0 then names that process to all others,
which end themselves with exit code ``PEER_LOST``, so that the launcher starts the job again.

Nothing in this file uses JAX.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, BinaryIO, ClassVar, NoReturn

from bert_jax.cluster import handshake, heartbeat_server
from bert_jax.cluster.exit_codes import PEER_LOST
from bert_jax.cluster.heartbeat_server import FIRST_SECONDS, HeartbeatServer
from bert_jax.cluster.job_key import KEY_FILE, NoKeyError
from bert_jax.cluster.messages import (
    Activity,
    AllHere,
    BadMessage,
    Beat,
    Bye,
    Failed,
    Message,
    Passed,
    Stop,
    Waits,
    as_line,
    parse,
)
from bert_jax.cluster.rendezvous import Rendezvous
from bert_jax.errors import PeerLostError

WATCHED_TIMES = 2.0  # a process that has sent nothing for this many times ``heartbeat_seconds`` ends itself
END = "end"  # the point of the program at which all processes wait before the first one leaves
TIMES_LONGEST = 5.0  # a state seen before may last this many times its longest duration, if that is the longer limit
# The states in ``UNEVEN`` may always take ``UNEVEN_SECONDS``: compiling or using a store is not faster the second time,
# and reading the first row of an epoch or a phase may include planning it.
UNEVEN_SECONDS = 900.0
UNEVEN: tuple[Activity, ...] = (
    "compiling",
    "first step",
    "restoring",
    "reading",
    "profiling",
    "saving",
    "finishing",
)


class HeartbeatClient:
    """The connection of a process to process 0; process 0 itself has one too.

    ``HeartbeatClient.open`` is the connection of this process, or None.
    """

    open: ClassVar[HeartbeatClient | None] = None

    def __init__(self, meeting: Rendezvous, stop: Callable[[str, int], Any] | None = None):
        """Connect to process 0; process 0 first starts the server.

        Args:
          stop: is called from a thread, with the reason and the exit code, when the job cannot go on; it must end the
            process. If None, ``leave_at_once`` is called.

        Raises:
          PeerLostError: process 0 cannot be reached, or one side cannot prove that it belongs to the job.
          UserError: the server cannot listen at its port, or cannot write the key into the workdir.
        """
        self._meeting, self._stop = meeting, stop or leave_at_once
        self.num_processes, self.process_id = meeting.num_processes, meeting.process_id
        self._server = HeartbeatServer(meeting) if meeting.process_id == 0 else None
        self._now = 0, "starting", time.monotonic(), 0  # step, state, since when, number of reports
        self._longest: dict[str, float] = {}
        self._all_here = False
        self._passed: dict[str, list[str]] = {}
        self._changed = threading.Condition()
        self._ending = self._stopping = False
        self._lock = threading.Lock()
        try:
            (self._socket, self._lines), self._heard = self._join(), time.monotonic()
        except BaseException:
            self._drop_key()
            raise

    def wait_for_all(self) -> None:
        """Wait until all processes have arrived. After that no process can join, and the key is removed."""
        for work in (self._listen, self._beat):
            threading.Thread(target=work, daemon=True, name="heartbeat").start()
        try:
            with self._changed:
                self._changed.wait_for(lambda: self._all_here)
        finally:
            self._drop_key()

    def wait(self, name: str, holds: str = "") -> None:
        """Wait until all processes have come to the point ``name`` of the program, each with the same ``holds``."""
        self._pass(name, holds, alike=True)

    def exchange(self, name: str, holds: str) -> list[str]:
        """Wait until all processes have come to the point ``name``; return the ``holds`` of each, by process number."""
        return self._pass(name, holds, alike=False)

    def _pass(self, name: str, holds: str, alike: bool) -> list[str]:
        self._send(Waits(name, holds, alike))
        with self._changed:
            self._changed.wait_for(lambda: name in self._passed)
        return self._passed[name]

    def at(self, step: int, state: Activity) -> None:
        """Report progress: the process is at ``step`` and is now doing ``state``."""
        (before, left, since, moves), now = self._now, time.monotonic()
        self._longest[left] = max(self._longest.get(left, 0.0), now - since)
        # A caller that reports a save may know only the step that was logged last.
        self._now = max(step, before), state, now, moves + 1

    def fail(self, error: str, code: int) -> None:
        """Tell the other processes that this process ends because of ``error``, with exit code ``code``."""
        self._ending = True
        self._send(Failed(error, code))
        if self._server is not None:
            time.sleep(heartbeat_server.BEAT_SECONDS)  # time for the server to pass the message on

    def leave(self) -> None:
        """Tell the other processes that this process has finished its work, and close the connection."""
        self._ending = True
        self._send(Bye())
        self.close()

    def close(self) -> None:
        """Close the connection."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _join(self) -> tuple[socket.socket, BinaryIO]:
        meeting, mistrust = self._meeting, ""
        deadline = time.monotonic() + meeting.arrival_seconds
        tried = f"after {meeting.arrival_seconds:.0f} s of trying"
        while True:
            try:
                return handshake.join(meeting)
            except handshake.FullError:
                raise PeerLostError(
                    f"at {meeting.address} runs a job whose {meeting.num_processes} processes have all arrived, and "
                    f"this process {meeting.process_id} does not belong to it; start it again when that job has ended"
                ) from None
            except NoKeyError as error:
                mistrust = (
                    f"process {meeting.process_id} has no key of this job in {meeting.workdir}/{KEY_FILE} ({error}) "
                    f"{tried}; give all processes the same --workdir, on a shared mount or a bucket, and one user"
                )
            except handshake.StrangerError:
                mistrust = (
                    f"what listens at {meeting.address} does not prove to be process 0 of this job, {tried}; check "
                    "--coordinator, and that all processes have the same version, or choose another port"
                )
            except OSError as error:
                unreachable = (
                    f"process {meeting.process_id} cannot reach process 0 at {meeting.address} "
                    f"({error.strerror or error}) {tried}; check that process 0 runs, --coordinator, and that the "
                    "network lets that port and the next one through"
                )
            if time.monotonic() > deadline:
                raise PeerLostError(mistrust or unreachable)  # process 0 may have given up earlier
            time.sleep(min(heartbeat_server.BEAT_SECONDS, meeting.arrival_seconds / 10))

    def _drop_key(self) -> None:
        if self._server is not None:
            self._server.key_file.remove()

    def _beat(self) -> None:
        while not (self._ending or self._stopping):
            if self._stop is leave_at_once:  # in case no thread can run any more, not even this one
                faulthandler.dump_traceback_later(WATCHED_TIMES * self._meeting.heartbeat_seconds, exit=True)
            step, state, since, moves = self._now
            self._send(Beat(step, moves, state, time.monotonic() - since, self._limit(state)))
            if (silence := time.monotonic() - self._heard) > self._meeting.heartbeat_seconds:
                self._end(f"process 0 at {self._meeting.address} has been silent for {silence:.0f} s", PEER_LOST)
                return
            time.sleep(heartbeat_server.BEAT_SECONDS)
        if self._ending and self._stop is leave_at_once:
            faulthandler.cancel_dump_traceback_later()

    def _end(self, reason: str, code: int) -> None:
        self._stopping = True
        self._drop_key()
        if self._stop is leave_at_once and reason.startswith(f"process {self.process_id} on "):
            faulthandler.dump_traceback(all_threads=True)  # shows where it is stuck
        self._stop(reason, code)

    def _limit(self, state: str) -> float:
        """Return the number of seconds for which the process may stay in ``state`` without progress."""
        longest = self._longest.get(state)
        least = UNEVEN_SECONDS if state in UNEVEN else self._meeting.heartbeat_seconds
        return FIRST_SECONDS if longest is None else max(least, TIMES_LONGEST * longest)

    def _listen(self) -> None:
        reason, code = f"process 0 at {self._meeting.address} is gone", PEER_LOST
        try:
            for line in self._lines:
                message, self._heard = parse(line), time.monotonic()
                if isinstance(message, Stop):
                    reason, code = message.reason, message.code
                    break
                with self._changed:
                    self._all_here = self._all_here or isinstance(message, AllHere)
                    if isinstance(message, Passed):
                        self._passed[message.name] = message.holds
                    self._changed.notify_all()
        except BadMessage as error:
            reason = f"process 0 at {self._meeting.address} sent {error}; install the same version everywhere"
        except OSError:
            pass
        self._lines.close()
        self._socket.close()
        if not self._ending and END not in self._passed:
            self._end(reason, code)

    def _send(self, message: Message) -> None:
        with self._lock, contextlib.suppress(OSError):  # ``_listen`` reports a closed connection
            self._socket.sendall(as_line(message))


def leave_at_once(reason: str, code: int) -> NoReturn:
    """End the process without its exit handlers, because they would wait for the other processes."""
    print(f"error: {reason}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(code)
