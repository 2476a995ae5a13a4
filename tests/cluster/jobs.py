"""A job of several "processes" of this one: threads, with connections between them and a store in memory."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from bert_jax.cluster.job import Job
from bert_jax.cluster.processes import Processes
from bert_jax.cluster.store import Exchange, Store


class SharedStore(Store):
    """Keys and texts in memory, in place of those of JAX's coordination service."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: str) -> None:
        with self._changed:
            assert key not in self._values
            self._values[key] = value
            self._changed.notify_all()

    def wait_for(self, key: str) -> str:
        with self._changed:
            assert self._changed.wait_for(lambda: key in self._values, 60)
            return self._values[key]


class Together:
    """The processes of one job that have met, and with what each was stopped."""

    def __init__(self, count: int, heartbeat_seconds: float = 30.0):
        store, address = SharedStore(), free_address()
        self._before = set(threading.enumerate())
        self.stops = dict[int, tuple[str, int]]()
        self.jobs = [
            Job(
                Processes(address, count, number, heartbeat_seconds=heartbeat_seconds),
                lambda reason, code, number=number: self.stops.setdefault(number, (reason, code)),
            )
            for number in range(count)
        ]
        for thread in self.in_threads(lambda job, number: job.meet()):
            thread.join(30)
        self.exchanges = [Exchange(store, number, job.hosts) for number, job in enumerate(self.jobs)]

    def at(self, step: int, state: Any, *numbers: int) -> None:
        """Some report progress, or all of them."""
        for number in numbers or range(len(self.jobs)):
            self.jobs[number].watchdog.at(step, state)

    def in_threads(self, work: Callable[[Job, int], object]) -> list[threading.Thread]:
        """All call ``work`` with their number."""
        threads = [
            threading.Thread(target=work, args=(job, number), daemon=True) for number, job in enumerate(self.jobs)
        ]
        for thread in threads:
            thread.start()
        return threads

    def end(self) -> None:
        for job in reversed(self.jobs):
            job.leave()
        until(lambda: not [one for one in set(threading.enumerate()) - self._before if one.name == "job"])


def free_address() -> str:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{trial.getsockname()[1]}"


def until(done: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)
