"""A job of several "processes" of this one: threads that share a store in memory, each with what a process has."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from bert_jax.cluster.job import Job
from bert_jax.cluster.processes import Processes
from bert_jax.cluster.store import Store


class SharedStore(Store):
    """Keys and texts in memory, in place of those of JAX's coordination service."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._changed = threading.Condition()
        self.mute: set[str] = set()  # keys whose new values do not arrive
        self.frozen = False  # nobody answers
        self.gone = False

    def set(self, key: str, value: str, again: bool = False) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self.gone or not self.frozen)
            self._check()
            if key not in self.mute and (again or key not in self._values):
                self._values[key] = value
                self._changed.notify_all()

    def wait_for(self, key: str) -> str:
        with self._changed:
            self._changed.wait_for(lambda: self.gone or (key in self._values and not self.frozen))
            self._check()
            return self._values[key]

    def below(self, folder: str) -> dict[str, str]:
        with self._changed:
            prefix = f"{folder}/"
            return {key.removeprefix(prefix): value for key, value in self._values.items() if key.startswith(prefix)}

    def end(self) -> None:
        with self._changed:
            self.gone = True
            self._changed.notify_all()

    def _check(self) -> None:
        if self.gone:
            raise OSError("the store is gone")


class Together:
    """The processes of one job, and with what each was stopped."""

    def __init__(self, count: int, heartbeat_seconds: float = 30.0):
        self.store, self.stops = SharedStore(), dict[int, tuple[str, int]]()
        self.address = "127.0.0.1:8476"
        hosts = [f"host{number}" for number in range(count)]
        self.jobs = [
            Job(
                Processes(self.address, count, number, heartbeat_seconds=heartbeat_seconds),
                lambda reason, code, number=number: self.stops.setdefault(number, (reason, code)),
            )
            for number in range(count)
        ]
        for job in self.jobs:
            job.begin(self.store, hosts)

    def at(self, step: int, state: Any, *numbers: int) -> None:
        """Some report progress, or all of them."""
        for number in numbers or range(len(self.jobs)):
            self.jobs[number].watchdog.at(step, state)

    def in_threads(self, work: Callable[[Job, int], object]) -> list[threading.Thread]:
        """All call ``work`` with their number."""

        def run(job: Job, number: int) -> None:
            with contextlib.suppress(OSError):  # the store ends while some still wait
                work(job, number)

        threads = [
            threading.Thread(target=run, args=(job, number), daemon=True, name="job")
            for number, job in enumerate(self.jobs)
        ]
        for thread in threads:
            thread.start()
        return threads

    def end(self) -> None:
        for job in self.jobs:
            job._over.set()
        self.store.end()
        until(lambda: not [thread for thread in threading.enumerate() if thread.name == "job"])


def free_address() -> str:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{trial.getsockname()[1]}"


def until(done: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)
