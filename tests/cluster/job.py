"""A job of several "processes" of this one: real sockets between threads, each with what a process has."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

from bert_jax.cluster.heartbeat_client import HeartbeatClient
from bert_jax.cluster.rendezvous import Rendezvous


def free_address() -> str:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{trial.getsockname()[1]}"


def until(done: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class Job:
    """Clients of one job, and with what each was stopped."""

    opened: ClassVar[list[HeartbeatClient]] = []

    def __init__(self, address: str, workdir: Path, count: int, **limits: Any):
        self.stops: dict[int, tuple[str, int]] = {}
        self.address, self.workdir = address, workdir
        self._count, self._limits = count, limits

    def client(self, number: int, count: int | None = None, workdir: Path | None = None) -> HeartbeatClient:
        meeting = Rendezvous(self.address, count or self._count, number, str(workdir or self.workdir), **self._limits)
        client = HeartbeatClient(meeting, lambda reason, code: self.stops.setdefault(number, (reason, code)))
        self.opened.append(client)
        return client

    def waiting(self, number: int, count: int | None = None) -> HeartbeatClient:
        """A client that waits for the others, in a thread of its own."""
        client = self.client(number, count)
        threading.Thread(target=client.wait_for_all, daemon=True).start()
        return client

    def clients(self) -> list[HeartbeatClient]:
        """All of them, once all are there."""
        with ThreadPoolExecutor(self._count) as pool:
            clients = list(pool.map(self.client, range(self._count)))
            list(pool.map(HeartbeatClient.wait_for_all, clients))
        return clients

    @classmethod
    def end_all(cls) -> None:
        while cls.opened:
            client = cls.opened.pop()
            client._ending = True
            client.close()
        until(lambda: not [thread for thread in threading.enumerate() if thread.name == "heartbeat"])
