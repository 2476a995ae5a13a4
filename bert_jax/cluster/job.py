"""Names the process of a running job that dies, freezes or stands still, and ends all processes.

JAX's collectives do not tell which process is missing: the other processes wait in them, sometimes for ever. So every
process writes what it is doing, twice a second, into the key-value store of JAX's coordination service, and process 0
reads this. A process that writes nothing for ``heartbeat_seconds`` is dead or frozen. If all of them write, but none
gets on, the one that is behind the others stands still, because the others wait for it. Process 0 then sets the key
"ended" to the reason and the exit code; a thread of every process waits for that key, prints the reason and leaves.

JAX's service expects heartbeats too. If a process sends none, or if process 0, which hosts the service, is gone, XLA
ends each process with several lines and SIGABRT, and Python code cannot prevent that. So JAX waits twice as long for a
heartbeat as we do, and acts only if no thread of ours can run. If process 0 dies, its connection to each process ends
(``arrival``), and a thread that waits for this ends the process while XLA still writes its report. A process 0
that ends by itself first sets "ended", and waits until the others have read it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import json
import math
import resource
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NoReturn

import jax

from bert_jax.cluster import signals
from bert_jax.cluster.arrival import Arrival
from bert_jax.cluster.exit_codes import BAD_INPUT, PEER_LOST, of_others
from bert_jax.cluster.processes import Processes, is_own, split_address
from bert_jax.cluster.store import Exchange, Store
from bert_jax.cluster.watchdog import Progress, Watchdog

BEAT_SECONDS = 0.5  # time from one writing of a process to the next; process 0 waits so long before it leaves
_TELL_SECONDS = 3.0  # the longest time to tell the others of an error; process 0 may be frozen
_CONNECT_SECONDS = 60  # the longest time from the arrival of all to the connection of all to JAX
_MOST_FILES = 1 << 16  # the limit on open files that process 0 sets for itself, if the system allows it


class Job:
    """The part of this process in a job of several. ``Job.open`` is the job of this process, or None.

    Args:
      stop: is called from a thread, with the reason and the exit code, when the job cannot go on; it must end the
        process.
    """

    open: ClassVar[Job | None] = None

    def __init__(self, processes: Processes, stop: Callable[[str, int], Any] | None = None):
        self.processes = processes
        self.arrival = Arrival(processes)
        self.watchdog = Watchdog(heartbeat_seconds=processes.heartbeat_seconds)
        self._stop = stop or _leave_at_once
        self._store: Store | None = None  # there is none before all are connected
        self._hosts: list[str] = []
        self._heard = time.monotonic()  # when the store last took our progress
        self._seen: dict[int, tuple[str, float]] = {}  # number -> what it wrote last, and when process 0 saw it first
        self._over = threading.Event()  # this process is leaving
        self._threads: list[threading.Thread] = []

    def join(self) -> None:
        """Wait for all processes, then connect all to JAX. Raises the errors of ``Arrival.wait``."""
        job = self.processes
        if job.is_first:
            _allow_files()
        hosts = self.arrival.wait()
        jax.distributed.initialize(
            job.coordinator,
            job.num_processes,
            job.process_id,
            local_device_ids=job.local_device_ids,
            initialization_timeout=_CONNECT_SECONDS,
            heartbeat_timeout_seconds=math.ceil(2 * job.heartbeat_seconds),
            coordinator_bind_address=job.coordinator if is_own(split_address(job.coordinator)[0]) else None,
        )
        self.begin(Store(), hosts)
        if not job.is_first:
            self._in_thread(self._follow_first)

    def begin(self, store: Store, hosts: list[str]) -> None:
        """Watch the other processes, and be watched; ``hosts`` has the host of each."""
        self._hosts, self._heard = hosts, time.monotonic()
        self._seen = dict.fromkeys(range(len(hosts)), ("", self._heard))
        self.watchdog.__enter__()
        self._store, self.exchange = store, Exchange(store, self.processes.process_id, hosts)
        self._threads = [self._in_thread(work) for work in (self._listen, self._beat, self._watch)]

    # ---- The end -----------------------------------------------------------------------------------------------------

    def end_alone(self) -> None:
        """Hear no more that the job ends: this process ends by an error of its own, and prints that alone."""
        if self._store is not None:
            self._over.set()

    def fail(self, error: str, code: int) -> None:
        """Tell the other processes that this process ends because of ``error``, with exit code ``code``."""
        if self._store is None:
            self.arrival.fail(error, code)
            return
        self._over.set()
        self.watchdog.__exit__()
        reason = f"{self._name(self.processes.process_id)} has failed: {error}"
        self._in_thread(lambda: self._end(reason, of_others(code))).join(_TELL_SECONDS)
        if self.processes.is_first:
            time.sleep(BEAT_SECONDS)  # the store is gone with this process; first all others read it

    def agree(self, name: str, value: str) -> None:
        """Wait until all processes have called this; if the values differ, the job ends with ``BAD_INPUT``."""
        if (line := self.exchange.difference(name, value)) is not None:
            self._end(line, BAD_INPUT)
            self._threads[0].join()  # it ends the process

    def leave(self) -> None:
        """End this process's part: wait for all others, then close the connection."""
        self.exchange.all_say("end", "")
        self._over.set()
        jax.distributed.shutdown()
        for thread in self._threads:  # a thread inside of JAX would be killed at the end of the interpreter
            thread.join(_TELL_SECONDS)
        self.watchdog.__exit__()

    # ---- Threads -----------------------------------------------------------------------------------------------------

    def _in_thread(self, work: Callable[[], object]) -> threading.Thread:
        thread = threading.Thread(target=work, daemon=True, name="job")
        thread.start()
        return thread

    def _beat(self) -> None:
        """Write again and again what this process is doing."""
        beats = 0
        while not self._over.is_set():
            beats += 1
            values = {**dataclasses.asdict(self.watchdog.progress()), "beats": beats}
            with contextlib.suppress(OSError):  # ``_listen`` sees it too
                self._connected().set(f"at/{self.processes.process_id}", json.dumps(values), again=True)
                self._heard = time.monotonic()
            self._over.wait(BEAT_SECONDS)

    def _listen(self) -> None:
        """Wait for the end of the job."""
        try:
            ended = json.loads(self._connected().wait_for("ended"))
            reason, code = ended["reason"], ended["code"]
        except OSError:
            reason, code = f"process 0 at {self.processes.coordinator} is gone", PEER_LOST
        self._leave(reason, code)

    def _follow_first(self) -> None:
        """Wait for the end of process 0."""
        if self.arrival.first_is_gone():
            self._leave(f"{self._name(0)} is gone", PEER_LOST)

    def _watch(self) -> None:
        """Look again and again whether a process is lost."""
        while not self._over.wait(BEAT_SECONDS):
            if self.processes.is_first:
                with contextlib.suppress(OSError):
                    if lost := self._lost(self._connected().below("at")):
                        self._end(lost, PEER_LOST)
            elif (silence := time.monotonic() - self._heard) > self.processes.heartbeat_seconds:
                self._leave(f"{self._name(0)} has been silent for {silence:.0f} s", PEER_LOST)

    def _lost(self, written: Mapping[str, str]) -> str | None:
        """Return a message that says which process is lost and why, or None if no process is lost."""
        now = time.monotonic()
        for number, text in written.items():
            if self._seen[int(number)][0] != text:
                self._seen[int(number)] = text, now
        latest = {number: _progress(text) for number, (text, _) in self._seen.items()}
        silent = {number: now - heard for number, (_, heard) in self._seen.items()}
        longest = max(silent, key=lambda number: silent[number])
        if silent[longest] > self.processes.heartbeat_seconds:
            at = f"at step {latest[longest].step:,}, {latest[longest].state}"
            return f"{self._name(longest)} has been silent for {silent[longest]:.0f} s ({at})"
        # All processes wait for the slowest one, so only the limit of the slowest is checked.
        stood = {number: silent[number] + progress.age for number, progress in latest.items()}
        last = min(latest, key=lambda number: (latest[number].step, latest[number].moves, -stood[number]))
        if stood[last] > latest[last].limit:
            at = f"at step {latest[last].step:,}, {latest[last].state}"
            others = f"(the others are at step {max(progress.step for progress in latest.values()):,})"
            return f"{self._name(last)} has stood still for {stood[last]:.0f} s {at} {others}"
        return None

    def _end(self, reason: str, code: int) -> None:
        with contextlib.suppress(OSError):
            self._connected().set("ended", json.dumps({"reason": reason, "code": code}))

    def _leave(self, reason: str, code: int) -> None:
        if self._over.is_set():
            return
        if self.processes.is_first:
            time.sleep(BEAT_SECONDS)  # the store is gone with this process; first all others read it
            if self._over.is_set():  # meanwhile this process ends by an error of its own
                return
        if reason.startswith(f"{self._name(self.processes.process_id)} has stood still"):
            faulthandler.dump_traceback(all_threads=True)
        self._over.set()
        self._stop(reason, code)

    def _name(self, number: int) -> str:
        return f"process {number} on {self._hosts[number]}"

    def _connected(self) -> Store:
        assert self._store is not None
        return self._store


def _leave_at_once(reason: str, code: int) -> NoReturn:
    """End the process without its exit handlers, because they would wait for the other processes."""
    print(f"error: {reason}", file=sys.stderr, flush=True)
    signals.leave(code)


def _allow_files() -> None:
    """Raise the limit on open files: each process has a connection to process 0, and strangers may hold more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(_MOST_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _progress(text: str) -> Progress:
    """Return what a process wrote; before the first time, that it starts."""
    if not text:
        return Progress(0, 0, "starting", 0.0, math.inf)
    values = json.loads(text)
    return Progress(**{field.name: values[field.name] for field in dataclasses.fields(Progress)})
