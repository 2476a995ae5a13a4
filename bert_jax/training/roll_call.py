"""All processes of a job know each other: who has come, who has gone, who stands still.

JAX's collectives do not tell who is missing: the others wait in them, some for ever. So every process keeps a line open
to process 0, beside JAX, on the port before the coordinator's. A process that dies closes its line at once; one that is
frozen falls silent; one that is stuck says so with the age of its last step. Process 0 then names it to all the others,
which end themselves with exit code ``PEER_LOST`` for the launcher to start the job again.

Messages are JSON, one a line. No part of this file knows JAX.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import faulthandler
import json
import os
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NoReturn

from bert_jax.errors import PeerLostError, UserError
from bert_jax.exit_codes import BAD_INPUT, PEER_LOST

BEAT_SECONDS = 0.5
WATCHED_TIMES = 2.0  # this many heartbeats' time without a beat end a process from within
END = "end"  # what all wait for before the first of them leaves
SPARE_FILES = 1024  # beside those of the job: shards, libraries
FIRST_SECONDS = 3600.0  # that anything may take the first time it is done: reading a corpus, an evaluation
TIMES_LONGEST = 5.0  # after that, this many times as long as it ever took, or the heartbeat's time
UNEVEN_SECONDS = 900.0  # that these may always take: compilers and stores are not as quick the second time, and to read
# the first row of an epoch or a phase may mean to plan it
UNEVEN = ("compiling", "first step", "restoring", "reading", "saving", "finishing")


@dataclasses.dataclass(frozen=True)
class Call:
    """Where the processes meet, and how long they wait for each other.

    Attributes:
      address: HOST:PORT of process 0.
      arrival_seconds: until all have to be there.
      heartbeat_seconds: of silence, or of standing still, after which a process is lost.
    """

    address: str
    num_processes: int
    process_id: int
    arrival_seconds: float = 300.0
    heartbeat_seconds: float = 30.0


@dataclasses.dataclass
class Member:
    """What process 0 knows of a process."""

    card: Mapping[str, Any]
    writer: asyncio.StreamWriter
    heard: float
    since: float  # when it last got on
    step: int = 0
    state: str = "starting"
    moves: int = 0  # times that it got on
    limit: float = FIRST_SECONDS

    @property
    def name(self) -> str:
        return f"process {self.card['process_id']} on {self.card['host']}"


class Desk:
    """The side of process 0: a server in a thread of its own."""

    def __init__(self, call: Call):
        self._call = call
        self._members: dict[int, Member] = {}
        self._waiting: dict[str, dict[int, str]] = {}  # point of the program -> process -> what it holds there
        self._complete, self._met = False, False  # all, process 0 itself have come
        self._stopped = b""  # the last message
        self._begun = time.monotonic()
        self._bound = threading.Event()
        self._error: OSError | None = None
        _allow_files(call.num_processes)
        threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True, name="roll-call").start()
        self._bound.wait()
        if self._error is not None:
            raise UserError(
                f"cannot listen at {call.address} ({self._error.strerror}); give --coordinator another port"
            )

    async def _serve(self) -> None:
        host, port = split_address(self._call.address)
        try:
            server = await asyncio.start_server(self._talk, host if _is_local(host) else None, port)
        except OSError as error:
            self._error = error
            return
        finally:
            self._bound.set()
        async with server:
            while self._members or not (self._met and (self._complete or self._stopped)):
                await asyncio.sleep(BEAT_SECONDS / 2)
                self._tell({})  # process 0 is awake
                if lost := self._lost():
                    await self._stop(lost)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        member, left = None, False
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, asyncio.LimitOverrunError):
            card = json.loads(await reader.readline())
            member = Member(card, writer, time.monotonic(), time.monotonic())
            if problem := self._refusal(member):
                if self._complete:  # who comes late ends no job that runs; the one before it may be about to be lost
                    writer.write(_line({"stop": problem, "code": PEER_LOST}))
                else:
                    await self._stop(problem, code=BAD_INPUT, also=writer)
                raise ConnectionError
            self._members[card["process_id"]] = member
            self._met = self._met or card["process_id"] == self._call.process_id
            if self._stopped:  # before this one came
                writer.write(self._stopped)
            if len(self._members) == self._call.num_processes:
                self._complete = True
                self._tell({"all": [m.card for _, m in sorted(self._members.items())]})
            while line := await reader.readline():
                left = await self._hear(member, json.loads(line)) or left
        writer.close()
        known = member is not None and self._members.get(member.card["process_id"]) is member
        if member is not None and known:
            del self._members[member.card["process_id"]]
        if member is not None and known and not left:
            await self._stop(f"{member.name} is gone (at step {member.step:,}, {member.state})")

    async def _hear(self, member: Member, message: Mapping[str, Any]) -> bool:
        """Take in a message; whether the process says goodbye."""
        member.heard = time.monotonic()
        if "step" in message:
            member.step, member.state = message["step"], message["state"]
            member.moves, member.limit = message["moves"], message["limit"]
            member.since = member.heard - message["age"]
        if "failed" in message:
            code = BAD_INPUT if message["code"] == BAD_INPUT else PEER_LOST
            await self._stop(f"{member.name} has failed: {message['failed']}", code)
        if "waits" in message:
            there = self._waiting.setdefault(message["waits"], {})
            there[member.card["process_id"]] = message["holds"]
            if len(there) == self._call.num_processes:
                if message["alike"] and (differing := self._differing(message["waits"], there)):
                    await self._stop(differing, code=BAD_INPUT)
                self._tell({"passed": message["waits"], "holds": [value for _, value in sorted(there.items())]})
        return "bye" in message

    def _differing(self, name: str, holds: Mapping[int, str]) -> str | None:
        others = [f"{value} on {self._members[number].name}" for number, value in holds.items() if value != holds[0]]
        if not others:
            return None
        more = f" and on {len(others) - 3} more" if len(others) > 3 else ""
        return f"{name} is {', '.join(others[:3])}{more}, but {holds[0]} on {self._members[0].name}; make them the same"

    def _refusal(self, member: Member) -> str | None:
        number, wanted = member.card["process_id"], self._call.num_processes
        if number in self._members:
            return (
                f"two processes have --process_id={number}: pid {self._members[number].card['pid']} on "
                f"{self._members[number].card['host']} and pid {member.card['pid']} on {member.card['host']}; number "
                f"them from 0 to {wanted - 1}"
            )
        if member.card["num_processes"] != wanted or not 0 <= number < wanted:
            return (
                f"{member.name} expects {member.card['num_processes']} processes, process 0 {wanted}; start all alike"
            )
        return None

    def _lost(self) -> str | None:
        """Who is lost, if anyone."""
        now, limit = time.monotonic(), self._call.heartbeat_seconds
        if not self._complete:
            if now - self._begun < self._call.arrival_seconds:
                return None
            absent = ", ".join(str(n) for n in range(self._call.num_processes) if n not in self._members)
            return (
                f"after {now - self._begun:.0f} s processes {absent} of {self._call.num_processes} have not come to "
                f"{self._call.address}; start them, or let the network through to that port"
            )
        silent = [m for m in self._members.values() if now - m.heard > limit]
        if silent:
            return f"{silent[0].name} has been silent for {now - silent[0].heard:.0f} s (at step {silent[0].step:,})"
        # The others wait for the last one: where it has time, they have.
        last = min(self._members.values(), key=lambda m: (m.step, m.moves, m.since), default=None)
        if last is not None and now - last.since > last.limit:
            first = max(m.step for m in self._members.values())
            return (
                f"{last.name} has stood still for {now - last.since:.0f} s at step {last.step:,}, {last.state} (the "
                f"others are at step {first:,})"
            )
        return None

    def _tell(self, message: Mapping[str, Any], *numbers: int) -> None:
        """Without waiting until they read it: one that is frozen must not keep it from the others."""
        line = _line(message)
        for number in numbers or list(self._members):
            with contextlib.suppress(OSError, KeyError):
                self._members[number].writer.write(line)

    async def _stop(self, reason: str, code: int = PEER_LOST, also: asyncio.StreamWriter | None = None) -> None:
        if self._stopped:
            return
        message, own = {"stop": reason, "code": code}, self._call.process_id
        self._stopped = _line(message)
        if also is not None:
            also.write(self._stopped)
        if others := set(self._members) - {own}:
            self._tell(message, *others)
        # Process 0 ends when it hears it, and the desk with it: the others are to have read it by then.
        for _ in range(10):
            if set(self._members) <= {own}:
                break
            await asyncio.sleep(BEAT_SECONDS / 5)
        if own in self._members:
            self._tell(message, own)


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
            time.sleep(BEAT_SECONDS)  # for the desk to pass it on

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
                time.sleep(min(BEAT_SECONDS, self._call.arrival_seconds / 10))

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
            time.sleep(BEAT_SECONDS)
        if self._ending and self._stop is leave_at_once:
            faulthandler.cancel_dump_traceback_later()

    def _end(self, reason: str, code: int) -> None:
        self._stopping = True
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
            self._socket.sendall(_line(message))


def leave_at_once(reason: str, code: int) -> NoReturn:
    """End the process without its exit handlers, which wait for the others. The stacks tell where it stood."""
    print(f"error: {reason}", file=sys.stderr, flush=True)
    if code == PEER_LOST:
        faulthandler.dump_traceback(all_threads=True)
    sys.stdout.flush()
    os._exit(code)


def _allow_files(num_processes: int) -> None:
    """Raise what the system lets a process have open, where it may be: a line to each process, for JAX another."""
    needed = 4 * num_processes + SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        wanted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))


def split_address(address: str) -> tuple[str, int]:
    """``HOST:PORT`` in its parts. Raises ``UserError`` if it is none."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 1 < int(port) <= 65_535:
        raise UserError(f"the coordinator is {address!r}; HOST:PORT is needed, such as 10.0.0.2:8476")
    return host.strip("[]"), int(port)


def _is_local(host: str) -> bool:
    """Whether nothing outside this machine is to reach the port."""
    return host in ("localhost", "127.0.0.1", "::1")


def _line(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"
