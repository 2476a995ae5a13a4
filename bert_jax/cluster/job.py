"""Watches the processes of a running job: ends all if one dies, freezes or stalls, and names that one.

JAX's collectives do not tell which process is missing: the other processes wait in them, sometimes for ever. So every
process writes what it is doing, twice a second, into the key-value store of JAX's coordination service, and process 0
reads this. A process that writes nothing for ``heartbeat_seconds`` is dead or frozen. If all of them write, but none
gets on, the one that is behind the others stands still, because the others wait for it. Process 0 then sets the key
"ended" to the reason and the exit code; a thread of every process waits for that key, prints the reason and leaves.

JAX's service expects heartbeats too (seen with 0.10.2 and 0.12.0.1). If a process sends none, or if process 0, which
hosts the service, is gone, XLA ends each process with several lines and SIGABRT. Python code cannot prevent that: the
callback for it fails with ``std::bad_cast``. So JAX waits twice as long for a heartbeat as we do, and acts only if no
thread of ours can run. If process 0 dies, XLA notices at once; ``_delay_abort`` makes XLA wait for six seconds. By then
our threads have noticed too, and have ended the process with one line and ``PEER_LOST``. A process 0 that ends by
itself first sets "ended", and waits until the others have read it.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import faulthandler
import json
import math
import resource
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, ClassVar, NoReturn

import jax

from bert_jax.cluster import signals
from bert_jax.cluster.arrival import Arrival, shared_code
from bert_jax.cluster.differences import difference
from bert_jax.cluster.exit_codes import BAD_INPUT, PEER_LOST
from bert_jax.cluster.processes import Processes, check_port, is_own, split_address, unreachable
from bert_jax.cluster.watchdog import Progress, Watchdog
from bert_jax.errors import UserError

BEAT_SECONDS = 0.5  # time from one writing of a process to the next; process 0 waits so long before it leaves
TELL_SECONDS = 3.0  # the longest time to tell the others of an error; process 0 may be frozen
MOST_FILES = 1 << 16  # the limit on open files that process 0 sets for itself, if the system allows it
FOR_EVER_MS = 10**9  # eleven days, after which the wait for a key is repeated


class Store:
    """The keys and texts that all processes of a job share.

    They are in JAX's coordination service; JAX keeps its client for them private.
    """

    def __init__(self) -> None:
        from jax._src.distributed import global_state

        self._client: Any = global_state.client

    def set(self, key: str, value: str, again: bool = False) -> None:
        """Set a key; do nothing if it is set already, unless it may be set ``again``."""
        try:
            self._client.key_value_set(key, value, allow_overwrite=again)
        except jax.errors.JaxRuntimeError as error:
            if "ALREADY_EXISTS" not in str(error):
                raise OSError(str(error)) from error

    def wait_for(self, key: str) -> str:
        """Return the value of a key, after waiting until it is set. Raises ``OSError`` if process 0 is gone."""
        while True:
            try:
                return str(self._client.blocking_key_value_get(key, FOR_EVER_MS))
            except jax.errors.JaxRuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise OSError(str(error)) from error

    def below(self, folder: str) -> dict[str, str]:
        """Return the values of all keys ``FOLDER/NAME``, by name."""
        try:
            pairs = self._client.key_value_dir_get(f"{folder}/")
        except jax.errors.JaxRuntimeError as error:
            raise OSError(str(error)) from error
        return {key.rpartition("/")[2]: value for key, value in pairs}


class Job:
    """The part of this process in a job of several. ``Job.open`` is that of this process, or None.

    Args:
      stop: is called from a thread, with the reason and the exit code, when the job cannot go on; it must end the
        process.
    """

    open: ClassVar[Job | None] = None

    def __init__(self, processes: Processes, stop: Callable[[str, int], Any] | None = None):
        self.processes = processes
        self._stop = stop or _leave_at_once
        self._arrival: Arrival | None = None
        self._store: Store | None = None
        self._hosts: list[str] = []
        self.watchdog = Watchdog(heartbeat_seconds=processes.heartbeat_seconds)
        self._heard = time.monotonic()  # when the store last took our progress
        self._seen: dict[int, tuple[str, float]] = {}  # number -> what it wrote last, and when process 0 saw it first
        self._calls: Counter[str] = Counter()  # name of an exchange -> how often it was called
        self._over = threading.Event()  # this process is leaving
        self._threads: list[threading.Thread] = []

    # ---- Arrival -----------------------------------------------------------------------------------------------------

    def join(self, workdir: str, same: Mapping[str, str]) -> None:
        """Wait for all processes, then connect. Raises the errors of ``Arrival.wait``."""
        self._arrival = Arrival(self.processes, workdir, same)
        connecting: Future[None] | None = None
        if self.processes.is_first:
            check_port(self.processes.coordinator)
            _allow_files()
            connecting = self._in_thread(self._connect)  # opens the port, and then waits for the others

        def check() -> None:
            if connecting is not None and connecting.done():
                connecting.result()

        hosts = self._arrival.wait(check)
        if connecting is None:
            self._connect()
        else:
            connecting.result()
        self._arrival.close()
        _delay_abort()
        self.begin(Store(), hosts)

    def _connect(self) -> None:
        job = self.processes
        jax.distributed.initialize(
            job.coordinator,
            job.num_processes,
            job.process_id,
            local_device_ids=job.local_device_ids,
            # JAX would abort the process at the end of this time; ``Arrival`` ends it before.
            initialization_timeout=math.ceil(2 * job.arrival_seconds) + 60,
            heartbeat_timeout_seconds=math.ceil(2 * job.heartbeat_seconds),
            coordinator_bind_address=job.coordinator if is_own(split_address(job.coordinator)[0]) else None,
        )

    @staticmethod
    def _in_thread(work: Callable[[], None]) -> Future[None]:
        done: Future[None] = Future()

        def run() -> None:
            try:
                work()
                done.set_result(None)
            except BaseException as error:
                done.set_exception(error)

        threading.Thread(target=run, daemon=True, name="job").start()
        return done

    def begin(self, store: Store, hosts: list[str]) -> None:
        """Watch the other processes, and be watched; ``hosts`` has the host of each."""
        self._hosts, self._heard = hosts, time.monotonic()
        self._seen = dict.fromkeys(range(len(hosts)), ("", self._heard))
        self.watchdog.__enter__()
        self._store = store
        self._threads = [
            threading.Thread(target=work, daemon=True, name="job") for work in (self._listen, self._beat, self._watch)
        ]
        for thread in self._threads:
            thread.start()

    # ---- What other parts of the program call ------------------------------------------------------------------------

    def exchange(self, name: str, holds: str, alike: bool = False) -> list[str]:
        """Return the ``holds`` of every process, by number. All processes must make the same calls of a name.

        With ``alike``, return []; if the values differ, the job ends with exit code ``BAD_INPUT``.
        """
        store, call = self._connected(), self._call(name)
        store.set(f"holds/{call}/{self.processes.process_id}", holds)
        if self.processes.is_first:
            values = [store.wait_for(f"holds/{call}/{number}") for number in range(self.processes.num_processes)]
            line = difference(name, dict(enumerate(values)), dict(enumerate(self._hosts))) if alike else None
            if line is not None:
                self._end(line, BAD_INPUT)
                self._over.wait()
            store.set(f"held/{call}", json.dumps([] if alike else values))
        return list(json.loads(store.wait_for(f"held/{call}")))

    def first_says(self, name: str, holds: str) -> str:
        """Return what process 0 ``holds``. All processes must make the same calls of a name."""
        store, call = self._connected(), self._call(name)
        if self.processes.is_first:
            store.set(f"said/{call}", holds)
        return store.wait_for(f"said/{call}")

    def _call(self, name: str) -> str:
        """Return the key of the next call of ``name``, which is the same on every process."""
        self._calls[name] += 1
        return f"{name}/{self._calls[name]}"

    def end_alone(self) -> None:
        """Hear no more that the job ends: this process ends by an error of its own, and prints that alone."""
        if self._store is not None:
            self._over.set()

    def fail(self, error: str, code: int) -> None:
        """Tell the other processes that this process ends because of ``error``, with exit code ``code``."""
        if self._store is None:
            if self._arrival is not None:
                self._arrival.fail(error, code)
            return
        self._over.set()
        self.watchdog.__exit__()
        telling = threading.Thread(
            target=self._end, args=(f"{self._name(self.processes.process_id)} has failed: {error}", shared_code(code))
        )
        telling.daemon = True
        telling.start()
        telling.join(TELL_SECONDS)
        if self.processes.is_first:
            time.sleep(BEAT_SECONDS)  # the store is gone with this process; first all others read it

    def leave(self) -> None:
        """End this process's part: wait for all others, then close the connection."""
        self.exchange("end", "")
        self._over.set()
        jax.distributed.shutdown()
        for thread in self._threads:  # a thread inside of JAX would be killed at the end of the interpreter
            thread.join(TELL_SECONDS)
        self.watchdog.__exit__()

    # ---- Threads -----------------------------------------------------------------------------------------------------

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

    def _watch(self) -> None:
        """Look again and again whether a process is lost."""
        limit = self.processes.heartbeat_seconds
        while not self._over.wait(BEAT_SECONDS):
            if self.processes.is_first:
                with contextlib.suppress(OSError):
                    if lost := self._lost(self._connected().below("at")):
                        self._end(lost, PEER_LOST)
                continue
            silence, where = time.monotonic() - self._heard, self.processes.coordinator
            if silence > limit:
                self._leave(f"process 0 at {where} has been silent for {silence:.0f} s", PEER_LOST)
            elif silence > 2 * BEAT_SECONDS and isinstance(unreachable(where, BEAT_SECONDS), ConnectionRefusedError):
                self._leave(f"process 0 at {where} is gone", PEER_LOST)

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
        if self._store is None:
            raise UserError("the processes of the job are not connected yet; call this later")
        return self._store


def _leave_at_once(reason: str, code: int) -> NoReturn:
    """End the process without its exit handlers, because they would wait for the other processes."""
    print(f"error: {reason}", file=sys.stderr, flush=True)
    signals.leave(code)


def _allow_files() -> None:
    """Raise the limit on open files: each process has a connection to process 0, and strangers may hold more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(MOST_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _progress(text: str) -> Progress:
    """Return what a process wrote; before the first time, that it starts."""
    if not text:
        return Progress(0, 0, "starting", 0.0, math.inf)
    values = json.loads(text)
    return Progress(**{field.name: values[field.name] for field in dataclasses.fields(Progress)})


def _delay_abort() -> None:
    """Let SIGABRT, with which XLA ends the process, wait for six seconds in the thread that raises it.

    The handler is the C function ``sleep``, whose argument is then the number of the signal, 6. No handler in Python
    would be called. After it the process aborts as ever.
    """
    library = ctypes.CDLL(None)
    library.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
    library.signal(int(signal.SIGABRT), ctypes.cast(library.sleep, ctypes.c_void_p))
