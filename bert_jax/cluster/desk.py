"""The side of process 0 in the roll call: it hears all processes of a job, and tells them who is lost."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import resource
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from bert_jax.cluster.exit_codes import BAD_INPUT, PEER_LOST
from bert_jax.errors import UserError

BEAT_SECONDS = 0.5  # from one message of a process, or of the desk, to the next
FIRST_SECONDS = 3600.0  # that anything may take the first time it is done: reading a corpus, an evaluation
PORT_SECONDS = 10.0  # for the process 0 of before a restart to be gone
LINE_BYTES = 2**22  # of a message at most: a config, a process's findings
SPARE_FILES = 1024  # beside those of the job: shards, libraries


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
                _told_by_another(call)
                or f"cannot listen at {call.address} ({self._error.strerror}); give --coordinator another port"
            )

    async def _serve(self) -> None:
        try:
            server = await self._listen()
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

    async def _listen(self) -> asyncio.Server:
        host, port = split_address(self._call.address)
        deadline = time.monotonic() + min(PORT_SECONDS, self._call.arrival_seconds)
        while True:
            try:
                return await asyncio.start_server(self._talk, host if _is_local(host) else None, port, limit=LINE_BYTES)
            except OSError:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(BEAT_SECONDS)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        member, left = None, False
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, asyncio.LimitOverrunError):
            card = json.loads(await reader.readline())
            member = Member(card, writer, time.monotonic(), time.monotonic())
            if problem := self._refusal(member):
                if self._complete:  # who comes late ends no job that runs; the one before it may be about to be lost
                    writer.write(as_line({"stop": problem, "code": PEER_LOST}))
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
                held = [] if message["alike"] else [value for _, value in sorted(there.items())]
                self._tell({"passed": message["waits"], "holds": held})
        return "bye" in message

    def _differing(self, name: str, holds: Mapping[int, str]) -> str | None:
        others = [number for number, value in holds.items() if value != holds[0]]
        if not others:
            return None
        own, first = self._members[0].name, self._members[others[0]].name
        more = f" and on {len(others) - 3} more" if len(others) > 3 else ""
        found, wanted = _leaves(holds[others[0]]), _leaves(holds[0])
        keys = [key for key in sorted({*found, *wanted}) if found.get(key, "absent") != wanted.get(key, "absent")]
        if keys:
            told = [f"{key} is {found.get(key, 'absent')}, not {wanted.get(key, 'absent')}" for key in keys[:3]]
            further = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
            return f"{name} on {first} is not that on {own}: {', '.join(told)}{further}; make them the same"
        told = [f"{holds[number]} on {self._members[number].name}" for number in others[:3]]
        return f"{name} is {', '.join(told)}{more}, but {holds[0]} on {own}; make them the same"

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
        line = as_line(message)
        for number in numbers or list(self._members):
            with contextlib.suppress(OSError, KeyError):
                self._members[number].writer.write(line)

    async def _stop(self, reason: str, code: int = PEER_LOST, also: asyncio.StreamWriter | None = None) -> None:
        if self._stopped:
            return
        message, own = {"stop": reason, "code": code}, self._call.process_id
        self._stopped = as_line(message)
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


def _allow_files(num_processes: int) -> None:
    """Raise what the system lets a process have open, where it may be: a line to each process, for JAX another."""
    needed = 4 * num_processes + SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        wanted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))


def _leaves(text: str) -> dict[str, str]:
    """The values of a JSON object by their dotted keys; {} if it is none."""

    def walk(tree: Any, prefix: str) -> Iterator[tuple[str, str]]:
        if not isinstance(tree, dict):
            yield prefix, json.dumps(tree)
            return
        for key, value in tree.items():
            yield from walk(value, f"{prefix}.{key}" if prefix else key)

    try:
        tree = json.loads(text)
    except ValueError:
        return {}
    return dict(walk(tree, "")) if isinstance(tree, dict) else {}


def split_address(address: str) -> tuple[str, int]:
    """``HOST:PORT`` in its parts. Raises ``UserError`` if it is none."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 1 < int(port) <= 65_535:
        raise UserError(f"the coordinator is {address!r}; HOST:PORT is needed, such as 10.0.0.2:8476")
    return host.strip("[]"), int(port)


def _told_by_another(call: Call) -> str | None:
    """What the desk of another process 0 has to say to this one, if it is one that listens there already."""
    card = {"process_id": 0, "num_processes": call.num_processes, "host": socket.gethostname(), "pid": os.getpid()}
    with contextlib.suppress(OSError, ValueError), socket.create_connection(split_address(call.address), 2) as line:
        line.sendall(as_line(card))
        for text in line.makefile("r", encoding="utf-8"):
            if reason := json.loads(text).get("stop"):
                return str(reason)
    return None


def _is_local(host: str) -> bool:
    """Whether nothing outside this machine is to reach the port."""
    return host in ("localhost", "127.0.0.1", "::1")


def as_line(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"
