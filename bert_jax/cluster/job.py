"""Names the process of a job that does not come, dies, freezes or stands still, and ends all processes.

JAX does not do this: its collectives wait for a missing process, sometimes for ever, and its coordination service
aborts all processes without naming one, or if a process is started twice. So this package connects every
process to process 0 (``line``).

- At the start process 0 listens at the port that JAX will use. Every other process connects and sends its number. When
  all have come, process 0 closes the port and answers with the host of each; only then do they connect to JAX. A
  process that comes later finds JAX at the port, which does not answer, so this process never disturbs the job.
- From then on each process sends twice a second what it is doing. If a connection ends, the process at its other end
  is gone. If nothing comes for ``heartbeat_seconds``, the process is frozen. If all send, but none gets on, the process
  that is behind the others stands still, because the others wait for it.
- Whoever finds a reason to end the job tells process 0, and process 0 tells all.

JAX expects heartbeats too. If a process sends none, or if process 0, which hosts JAX's service, is gone, XLA ends each
process with several lines and SIGABRT, and Python code cannot prevent that. So JAX waits twice as long as we do. If
process 0 dies, XLA notices at once, but takes about a second for its report; by then our thread has ended the process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NoReturn

from bert_jax.cluster import signals
from bert_jax.cluster.exit_codes import BAD_INPUT, INTERRUPTED, PEER_LOST, PREEMPTED, of_others
from bert_jax.cluster.line import Line, listen_at
from bert_jax.cluster.processes import Processes, split_address
from bert_jax.cluster.watchdog import Progress, Watchdog
from bert_jax.errors import Interrupted, PeerLostError, Preempted, UserError
from bert_jax.program import say

BEAT_SECONDS = 0.5  # time from one beat of a process to the next; process 0 waits so long before it leaves
SAY_SECONDS = 20.0  # time from one line about the wait for others to the next
_LOOK_SECONDS = 0.2
_REACH_SECONDS = 3.0  # the longest try to reach process 0, and the longest wait of process 0 for a card
_CARD = {"number": int, "of": int, "host": str, "pid": int}


class Job:
    """The part of this process in a job of several. ``Job.open`` is the job of this process, or None.

    Args:
      stop: is called from a thread, with the reason and the exit code, when the job cannot go on; it must end the
        process.
    """

    open: ClassVar[Job | None] = None

    def __init__(self, processes: Processes, stop: Callable[[str, int], Any] | None = None):
        self.processes = processes
        self.hosts: list[str] = []  # of all processes, by number; empty until all have come
        self.watchdog = Watchdog(heartbeat_seconds=processes.heartbeat_seconds)
        self._stop = stop or _leave_at_once
        place = {"number": processes.process_id, "of": processes.num_processes}
        self._card: dict[str, Any] = {**place, "host": socket.gethostname(), "pid": os.getpid()}
        self._cards: dict[Line, dict[str, Any]] = {}  # the other processes, as process 0 knows them
        self._counting, self._are_counted = threading.Lock(), False  # no card is taken after all were counted
        self._to_first: Line | None = None
        self._deadline = time.monotonic() + processes.arrival_seconds
        self._said = time.monotonic()  # when it was last said for whom this process waits
        self._seen: dict[int, tuple[Progress, float]] = {}  # number -> what it does, and when process 0 heard this
        self._ended: tuple[str, int] | None = None  # why the job ends, and the exit code
        self._over, self._stopped = threading.Event(), threading.Event()  # this process is leaving; has left

    # ---- The arrival of all ------------------------------------------------------------------------------------------

    def meet(self) -> None:
        """Wait until all processes have come, then begin to watch them.

        Raises:
          PeerLostError: a process does not come in time, or process 0 cannot be reached.
          UserError: two processes have one number, other numbers are expected, or the port of process 0 is taken.
        """
        answer = self._gather() if self.processes.is_first else self._knock()
        if "reason" in answer:
            kinds = {BAD_INPUT: UserError, PREEMPTED: Preempted, INTERRUPTED: Interrupted}
            raise kinds.get(answer["code"], PeerLostError)(answer["reason"])
        now = Progress(0, 0, "starting", 0.0, math.inf), time.monotonic()
        self._seen = dict.fromkeys(range(len(answer["hosts"])), now)
        self.hosts = list(answer["hosts"])
        self.watchdog.__enter__()
        _in_thread(self._beat)
        if not self.processes.is_first:
            _in_thread(self._follow)

    def _gather(self) -> dict[str, Any]:
        """Wait, as process 0, for all others; return what they are told."""
        with listen_at(self.processes.coordinator) as server:
            server.settimeout(_LOOK_SECONDS)
            while (answer := self._count()) is None:
                with contextlib.suppress(OSError):  # nobody has come, or too many files are open
                    line = Line(server.accept()[0])
                    _in_thread(lambda line=line: self._hear(line))  # type: ignore[misc]
                absent = self._absent()
                if self._say(f"process 0 waits for processes {absent} of {self.processes.num_processes}"):
                    self._tell(absent=absent)
        if "reason" in answer:
            self._end(answer["reason"], answer["code"])
        else:
            self._tell(**answer)
        return answer

    def _count(self) -> dict[str, Any] | None:
        """Return what to answer, and then take no more cards; None while processes are missing."""
        with self._counting:
            answer = self._answer()
            self._are_counted = answer is not None
            return answer

    def _answer(self) -> dict[str, Any] | None:
        """Return the hosts of all processes, or the reason why there is no job; None while processes are missing."""
        job, number_of = self.processes, {0: self._card}
        if self._ended:
            return _no_job(*self._ended)
        for card in list(self._cards.values()):
            if other := number_of.get(card["number"]):
                pids = f"pid {other['pid']} on {other['host']} and pid {card['pid']} on {card['host']}"
                numbers = f"number them from 0 to {job.num_processes - 1}"
                return _no_job(f"two processes have --process_id={card['number']}: {pids}; {numbers}", BAD_INPUT)
            if card["of"] != job.num_processes or not 0 <= card["number"] < job.num_processes:
                both = f"{_called(card)} expects {card['of']} processes, process 0 {job.num_processes}"
                return _no_job(f"{both}; start all alike", BAD_INPUT)
            number_of[card["number"]] = card
        if len(number_of) == job.num_processes:
            return {"hosts": [number_of[number]["host"] for number in range(job.num_processes)]}
        if time.monotonic() < self._deadline:
            return None
        return _no_job(
            f"after {job.arrival_seconds:.0f} s processes {self._absent()} of {job.num_processes} have not arrived at "
            f"{job.coordinator}; start them with the same --coordinator, and let the network through to it",
            PEER_LOST,
        )

    def _absent(self) -> str:
        """Return the numbers of the processes that have not come, for a message."""
        there = {0, *(card["number"] for card in list(self._cards.values()))}
        return ", ".join(str(number) for number in range(self.processes.num_processes) if number not in there)

    def _knock(self) -> dict[str, Any]:
        """Go to process 0 and wait for its answer."""
        job, error = self.processes, None
        name = f"process {job.process_id}"
        while time.monotonic() < self._deadline:
            try:
                connection = socket.create_connection(split_address(job.coordinator), timeout=_REACH_SECONDS)
                error = None
                if answer := self._ask(Line(connection)):
                    return answer
            except OSError as caught:
                error = caught
            self._say(f"{name} waits for process 0" + (f" ({error.strerror or error})" if error else ""))
            time.sleep(_LOOK_SECONDS)
        tried = f"after {job.arrival_seconds:.0f} s of trying"
        if error is not None:
            raise PeerLostError(
                f"{name} cannot reach process 0 at {job.coordinator} ({error.strerror or error}) {tried}; check that "
                "process 0 runs, --coordinator, and that the network lets that port through"
            )
        raise PeerLostError(
            f"{name} finds no process 0 that waits for it at {job.coordinator} {tried}; start process 0 with the same "
            "--coordinator; a job whose processes have all arrived takes no other"
        )

    def _ask(self, line: Line) -> dict[str, Any] | None:
        """Return the answer of process 0, or None if whoever listens there is no process 0 that waits for others."""
        line.send(**self._card)
        self._to_first = line
        with contextlib.suppress(TimeoutError):
            while answer := line.read(max(0.0, self._deadline - time.monotonic()) + _REACH_SECONDS):
                if "absent" not in answer:
                    return answer
                self._said = -math.inf
                self._say(f"process {self.processes.process_id} waits with process 0 for processes {answer['absent']}")
        self._to_first = None
        line.close()
        return None

    def _say(self, whom: str) -> bool:
        """Say for ``whom`` this process waits, if it was not said for ``SAY_SECONDS``; return whether it was said."""
        now = time.monotonic()
        if due := now - self._said >= SAY_SECONDS:
            self._said = now
            say(f"{whom}, at {self.processes.coordinator}, for {max(0.0, self._deadline - now):.0f} s more")
        return due

    # ---- The end -----------------------------------------------------------------------------------------------------

    def end_alone(self) -> None:
        """Ignore that the job ends, from here on: an error of its code ends this process, which prints that error."""
        if self.hosts:
            self._over.set()

    def fail(self, error: str, code: int) -> None:
        """Tell the other processes that this process ends because of ``error``, with exit code ``code``."""
        self.end_alone()
        self.watchdog.__exit__()
        self._end(f"{_called(self._card)} has failed: {error}", of_others(code))
        if self.processes.is_first:
            time.sleep(BEAT_SECONDS)  # JAX's service is gone with this process; first all others leave

    def end_all(self, reason: str, code: int) -> None:
        """End all processes, this one too. All call this together."""
        if self.processes.is_first:
            self._end(reason, code)
        self._stopped.wait()

    def leave(self) -> None:
        """Stop watching and close the connections: all processes have finished."""
        self._over.set()
        self.watchdog.__exit__()
        for line in [*list(self._cards), *([self._to_first] if self._to_first else [])]:
            line.close()

    def _end(self, reason: str, code: int) -> None:
        if self._ended is None:
            self._ended = reason, code
            self._tell(reason=reason, code=code)
            if self.processes.is_first and self.hosts:
                _in_thread(lambda: self._leave(reason, code))

    def _leave(self, reason: str, code: int) -> None:
        if self.processes.is_first:
            time.sleep(BEAT_SECONDS)  # JAX's service is gone with this process; first all others leave
        if self._over.is_set():  # this process ends already, by an error of its code
            return
        if reason.startswith(f"{_called(self._card)} has stood still"):
            faulthandler.dump_traceback(all_threads=True)
        self._over.set()
        self._stop(reason, code)
        self._stopped.set()

    # ---- Threads -----------------------------------------------------------------------------------------------------

    def _hear(self, line: Line) -> None:
        """Hear, as process 0, what another process says until the process ends."""
        if card := self._admit(line):
            while said := line.read():
                if "reason" in said:
                    self._end(said["reason"], said["code"])
                else:
                    # Another version may say other things; ``distributed.join`` then names the versions.
                    before = self._seen[card["number"]][0]
                    progress = Progress(**said) if said.keys() == dataclasses.asdict(before).keys() else before
                    self._seen[card["number"]] = progress, time.monotonic()
            del self._cards[line]
            if self.hosts and not self._over.is_set():
                self._end(f"{_called(card)} is gone ({_at(self._seen[card['number']][0])})", PEER_LOST)
        line.close()

    def _admit(self, line: Line) -> dict[str, Any] | None:
        """Take the card of another process and return the card; None for a stranger, or once all are counted."""
        card: dict[str, Any] = {}
        with contextlib.suppress(TimeoutError):
            card = line.read(_REACH_SECONDS) or {}
        if not all(isinstance(card.get(name), kind) for name, kind in _CARD.items()):
            return None
        with self._counting:
            if not self._are_counted:
                self._cards[line] = card
                return card
        if self._ended:
            line.send(**_no_job(*self._ended))
        return None

    def _follow(self) -> None:
        """Hear process 0 until the job ends."""
        assert self._to_first is not None
        first = f"process 0 on {self.hosts[0]}"
        try:
            while said := self._to_first.read(self.processes.heartbeat_seconds):
                if "reason" in said:
                    return self._leave(said["reason"], said["code"])
            self._leave(f"{first} is gone", PEER_LOST)
        except TimeoutError:
            self._leave(f"{first} has been silent for {self.processes.heartbeat_seconds:.0f} s", PEER_LOST)

    def _beat(self) -> None:
        """Tell again and again what this process is doing; as process 0, look whether a process is lost."""
        while not self._over.wait(BEAT_SECONDS):
            progress = self.watchdog.progress()
            self._tell(**dataclasses.asdict(progress))
            self._seen[self.processes.process_id] = progress, time.monotonic()
            if self.processes.is_first and (lost := self._lost(dict(self._seen))):
                self._end(lost, PEER_LOST)

    def _lost(self, seen: Mapping[int, tuple[Progress, float]]) -> str | None:
        """Return a message that says which process is silent or stands still, or None if no process is lost."""
        now = time.monotonic()
        latest = {number: progress for number, (progress, _) in seen.items()}
        silent = {number: now - heard for number, (_, heard) in seen.items()}
        longest = max(silent, key=lambda number: silent[number])
        if silent[longest] > self.processes.heartbeat_seconds:
            name = f"process {longest} on {self.hosts[longest]}"
            return f"{name} has been silent for {silent[longest]:.0f} s ({_at(latest[longest])})"
        # All processes wait for the slowest one, so only the limit of the slowest is checked.
        stood = {number: silent[number] + progress.age for number, progress in latest.items()}
        last = min(latest, key=lambda number: (latest[number].step, latest[number].moves, -stood[number]))
        if stood[last] > latest[last].limit:
            others = f"(the others are at step {max(progress.step for progress in latest.values()):,})"
            name = f"process {last} on {self.hosts[last]}"
            return f"{name} has stood still for {stood[last]:.0f} s {_at(latest[last])} {others}"
        return None

    def _tell(self, **content: Any) -> None:
        """Send a line to process 0, or from process 0 to all others that have come."""
        for line in list(self._cards) if self.processes.is_first else [self._to_first]:
            if line is not None:
                line.send(**content)


def _in_thread(work: Callable[[], object]) -> None:
    threading.Thread(target=work, daemon=True, name="job").start()


def _leave_at_once(reason: str, code: int) -> NoReturn:
    """End the process without its exit handlers, because they would wait for the other processes."""
    print(f"error: {reason}", file=sys.stderr, flush=True)
    signals.leave(code)


def _no_job(reason: str, code: int) -> dict[str, Any]:
    return {"reason": reason, "code": code}


def _called(card: Mapping[str, Any]) -> str:
    return f"process {card['number']} on {card['host']}"


def _at(progress: Progress) -> str:
    return f"at step {progress.step:,}, {progress.state}"
