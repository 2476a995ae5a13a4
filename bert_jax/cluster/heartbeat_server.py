"""The heartbeat server of process 0: listens to all processes of a job, and tells them if one of them is lost.

It accepts only processes that prove that they belong to the job, and none after all have arrived. Other connections are
counted as strangers; they cannot end the job.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import resource
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from bert_jax.cluster import handshake
from bert_jax.cluster.exit_codes import BAD_INPUT, INTERRUPTED, PEER_LOST
from bert_jax.cluster.job_key import KeyFile, NoKeyError
from bert_jax.cluster.messages import (
    LINE_BYTES,
    PROOF_BYTES,
    AllHere,
    Awake,
    BadMessage,
    Beat,
    Bye,
    Failed,
    Full,
    Join,
    Message,
    Passed,
    Stop,
    Waits,
    as_line,
    parse,
    read_line,
)
from bert_jax.cluster.rendezvous import BACKLOG, Rendezvous, listen
from bert_jax.errors import UserError

BEAT_SECONDS = 0.5  # time from one message of a process, or of the server, to the next
FIRST_SECONDS = 3600.0  # any state, such as "evaluating", may last this long the first time
PORT_SECONDS = 10.0  # how long to wait for the port, which process 0 of an earlier start may still hold
ANOTHER_SECONDS = 2.0  # how long to wait for each answer of a server that already holds the port
SPARE_FILES = 1024  # number of open files besides the connections of the job: shards, libraries
MOST_FILES = 1 << 16  # the limit on open files that process 0 sets for itself, if the system allows it
UNPROVEN = 256  # the most connections that have not proved who they are; a new one replaces the oldest
NOISE_SECONDS = 60.0  # least time between two printed lines about strangers


@dataclasses.dataclass
class Member:
    """What process 0 knows about a process of the job."""

    join: Join
    writer: asyncio.StreamWriter
    heard: float
    since: float  # when the process last made progress
    step: int = 0
    state: str = "starting"
    moves: int = 0  # how often the process made progress
    limit: float = FIRST_SECONDS

    @property
    def name(self) -> str:
        return f"process {self.join.process_id} on {self.join.host}"


class Strangers:
    """Connections that do not belong to the job: limits their number, and prints about them at most once a minute."""

    def __init__(self, address: str):
        self._address = address
        self._there: dict[asyncio.StreamWriter, None] = {}  # the oldest first
        self._count, self._next_line = 0, 0.0
        self.last = ""  # the address of the last stranger, and what the stranger did

    @contextlib.contextmanager
    def until_proven(self, writer: asyncio.StreamWriter) -> Iterator[None]:
        """Count a connection as a stranger's inside the context: until it has proved that it belongs to the job."""
        while len(self._there) >= UNPROVEN:
            oldest = next(iter(self._there))
            del self._there[oldest]
            oldest.transport.abort()
        self._there[writer] = None
        try:
            yield
        finally:
            self._there.pop(writer, None)

    def note(self, writer: asyncio.StreamWriter | None, why: str) -> None:
        peer = writer.get_extra_info("peername") if writer is not None else None
        self._count += 1
        self.last = f"{str(peer[0]).removeprefix('::ffff:') if peer else 'an unknown address'} {why}"
        self.tell()

    def tell(self) -> None:
        """Print how many strangers have connected since the last such line, at most once a minute."""
        if self._count and time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + NOISE_SECONDS
            some = f"{self._count:,} connection{'s' * (self._count != 1)} to {self._address} from outside of this job"
            with contextlib.suppress(OSError, ValueError):  # standard error may be closed
                print(f"{some}; the last: {self.last}; nothing was done", file=sys.stderr, flush=True)
            self._count = 0

    def hang_up(self) -> None:
        for writer in self._there:
            writer.transport.abort()


class HeartbeatServer:
    """The heartbeat server, which runs in a thread of its own."""

    def __init__(self, meeting: Rendezvous):
        """Start the server. Raises ``UserError`` if it cannot listen at its port or write the key."""
        self._meeting = meeting
        self._members: dict[int, Member] = {}
        self._waiting: dict[str, dict[int, str]] = {}  # point of the program -> process -> its ``holds``
        self._complete, self._met = False, False  # whether all processes have arrived; whether process 0 itself has
        self._stopped: Stop | None = None  # the message that ends the job, once it was sent
        self._strangers = Strangers(meeting.address)
        self._begun = time.monotonic()
        _allow_files(meeting.num_processes)
        try:
            self._sockets = listen(meeting.address, min(PORT_SECONDS, meeting.arrival_seconds))
        except OSError as error:
            raise UserError(
                _answer_of_another(meeting)
                or f"cannot listen at {meeting.address} ({error.strerror}); give --coordinator another port"
            ) from None
        try:
            self.key_file = KeyFile(meeting.workdir)  # before any answer, and only once we have the port
        except BaseException:
            for listening in self._sockets:
                listening.close()
            raise
        threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True, name="heartbeat").start()

    async def _serve(self) -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: self._strangers.note(None, f"made trouble ({context['message']})")
        )
        servers = [
            await asyncio.start_server(self._talk, sock=listening, limit=PROOF_BYTES, backlog=BACKLOG)
            for listening in self._sockets
        ]
        while self._members or not (self._met and (self._complete or self._stopped)):
            await asyncio.sleep(BEAT_SECONDS / 2)
            self._tell(Awake())
            self._strangers.tell()
            if lost := self._lost():
                await self._stop(lost)
        for server in servers:
            server.close()
        self._strangers.hang_up()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if member := await self._admit(reader, writer):
                await self._attend(member, reader)
        finally:
            writer.close()

    async def _attend(self, member: Member, reader: asyncio.StreamReader) -> None:
        """Listen to a member until its connection ends; stop the job if the member has not said goodbye before."""
        left = False
        try:
            while line := await read_line(reader, LINE_BYTES):
                left = await self._hear(member, parse(line)) or left
        except OSError:  # the connection broke
            pass
        except BadMessage as error:
            await self._stop(f"{member.name} sent {error}; install the same version everywhere", BAD_INPUT)
        finally:
            del self._members[member.join.process_id]
            if not left:
                await self._stop(f"{member.name} is gone (at step {member.step:,}, {member.state})")

    async def _admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Member | None:
        """Return the member that has joined, or None for a stranger or a process that is refused."""
        if self._complete:  # a late process must not end the running job; it may replace one about to be lost
            writer.write(as_line(Full()))
            self._strangers.note(writer, "came when all processes had arrived")
            return None
        try:
            with self._strangers.until_proven(writer):
                join = await handshake.admit(self.key_file.key, reader, writer)
        except BadMessage as error:
            self._strangers.note(writer, f"sent {error}")
        except TimeoutError:
            self._strangers.note(writer, f"sent no proof in {handshake.PROOF_SECONDS:.0f} s")
        except OSError:
            self._strangers.note(writer, "hung up")
        else:
            return await self._enter(Member(join, writer, time.monotonic(), time.monotonic()))
        writer.transport.abort()
        return None

    async def _enter(self, member: Member) -> Member | None:
        if problem := self._refusal(member):
            if self._complete:
                member.writer.write(as_line(Stop(problem, PEER_LOST)))
            else:
                await self._stop(problem, code=BAD_INPUT, also=member.writer)
            return None
        number = member.join.process_id
        self._members[number] = member
        self._met = self._met or number == self._meeting.process_id
        if self._stopped:  # the job was stopped before this process arrived
            member.writer.write(as_line(self._stopped))
        if len(self._members) == self._meeting.num_processes:
            self._complete = True
            self._tell(AllHere())
        return member

    async def _hear(self, member: Member, message: Message) -> bool:
        """Handle a message of a member; return whether the message was a goodbye."""
        member.heard = time.monotonic()
        match message:
            case Beat():
                member.step, member.state = message.step, message.state
                member.moves, member.limit = message.moves, message.limit
                member.since = member.heard - message.age
            case Failed():
                code = message.code if message.code in (BAD_INPUT, INTERRUPTED) else PEER_LOST
                await self._stop(f"{member.name} has failed: {message.error}", code)
            case Waits():
                await self._wait(member, message)
            case Bye():
                return True
            case _:
                raise BadMessage(f"a message {type(message).__name__}, which only process 0 sends")
        return False

    async def _wait(self, member: Member, message: Waits) -> None:
        there = self._waiting.setdefault(message.name, {})
        there[member.join.process_id] = message.holds
        if len(there) < self._meeting.num_processes or self._stopped:
            return
        del self._waiting[message.name]
        if message.alike and (differing := self._differing(message.name, there)):
            await self._stop(differing, code=BAD_INPUT)
        held = [] if message.alike else [value for _, value in sorted(there.items())]
        self._tell(Passed(message.name, held))

    def _differing(self, name: str, holds: Mapping[int, str]) -> str | None:
        others = [number for number, value in holds.items() if value != holds[0]]
        if not others:
            return None
        own, first = self._members[0].name, self._members[others[0]].name
        more = f" and on {len(others) - 3} more" if len(others) > 3 else ""
        found, wanted = _leaves(holds[others[0]]), _leaves(holds[0])
        keys = [key for key in sorted({*found, *wanted}) if found.get(key, "absent") != wanted.get(key, "absent")]
        if keys:
            differences = [f"{key} is {found.get(key, 'absent')}, not {wanted.get(key, 'absent')}" for key in keys[:3]]
            further = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
            return f"{name} on {first} is not that on {own}: {', '.join(differences)}{further}; make them the same"
        values = [f"{holds[number]} on {self._members[number].name}" for number in others[:3]]
        return f"{name} is {', '.join(values)}{more}, but {holds[0]} on {own}; make them the same"

    def _refusal(self, member: Member) -> str | None:
        join, wanted = member.join, self._meeting.num_processes
        if join.process_id in self._members:
            other = self._members[join.process_id].join
            return (
                f"two processes have --process_id={join.process_id}: pid {other.pid} on {other.host} and pid "
                f"{join.pid} on {join.host}; number them from 0 to {wanted - 1}"
            )
        if join.num_processes != wanted or join.process_id >= wanted:
            return f"{member.name} expects {join.num_processes} processes, process 0 {wanted}; start all alike"
        return None

    def _lost(self) -> str | None:
        """Return a message that says which process is lost and why, or None if no process is lost."""
        now, limit = time.monotonic(), self._meeting.heartbeat_seconds
        if not self._complete:
            if now - self._begun < self._meeting.arrival_seconds:
                return None
            absent = ", ".join(str(n) for n in range(self._meeting.num_processes) if n not in self._members)
            return (
                f"after {now - self._begun:.0f} s processes {absent} of {self._meeting.num_processes} have not arrived "
                f"at {self._meeting.address}; start them, or let the network through to that port{self._hint()}"
            )
        silent = [m for m in self._members.values() if now - m.heard > limit]
        if silent:
            return f"{silent[0].name} has been silent for {now - silent[0].heard:.0f} s (at step {silent[0].step:,})"
        # All processes wait for the slowest one, so only the limit of the slowest is checked.
        last = min(self._members.values(), key=lambda m: (m.step, m.moves, m.since), default=None)
        if last is not None and now - last.since > last.limit:
            first = max(m.step for m in self._members.values())
            return (
                f"{last.name} has stood still for {now - last.since:.0f} s at step {last.step:,}, {last.state} (the "
                f"others are at step {first:,})"
            )
        return None

    def _hint(self) -> str:
        last = self._strangers.last
        return f" (not of this job: {last}; do all have the same --workdir, and the same user?)" if last else ""

    def _tell(self, message: Message, *numbers: int) -> None:
        """Send a message without waiting until it is read, so that a frozen process does not delay the others."""
        line = as_line(message)
        for number in numbers or list(self._members):
            if number in self._members and not self._members[number].writer.is_closing():
                self._members[number].writer.write(line)

    async def _stop(self, reason: str, code: int = PEER_LOST, also: asyncio.StreamWriter | None = None) -> None:
        if self._stopped:
            return
        self._stopped, own = Stop(reason, code), self._meeting.process_id
        if also is not None:
            also.write(as_line(self._stopped))
        if others := set(self._members) - {own}:
            self._tell(self._stopped, *others)
        # Process 0, and the server with it, ends when it reads the message; all others should have read it before.
        for _ in range(10):
            if set(self._members) <= {own}:
                break
            await asyncio.sleep(BEAT_SECONDS / 5)
        if own in self._members:
            self._tell(self._stopped, own)


def _answer_of_another(meeting: Rendezvous) -> str | None:
    """Return an error message if the server of another process 0 already uses the port, and None otherwise."""
    with contextlib.suppress(OSError, NoKeyError, handshake.StrangerError):
        try:
            line, lines = handshake.join(meeting, ANOTHER_SECONDS)
        except handshake.FullError:
            return f"at {meeting.address} a job runs whose processes have all arrived; wait for it or give another port"
        with line, lines:
            line.settimeout(ANOTHER_SECONDS)
            for text in lines:
                with contextlib.suppress(BadMessage):
                    if isinstance(message := parse(text), Stop):
                        return message.reason
    return None


def _allow_files(num_processes: int) -> None:
    """Raise the limit on open files as far as the system allows it.

    Each process of the job needs a connection to this server and one to JAX, and strangers who reach JAX's port may
    hold more.
    """
    wanted = max(MOST_FILES, 4 * num_processes + SPARE_FILES)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))


def _leaves(text: str) -> dict[str, str]:
    """Return the values of a JSON object as text, by their dotted keys; {} if ``text`` is not a JSON object."""

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
