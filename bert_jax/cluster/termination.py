"""Ends training on SIGTERM or Ctrl-C: the step is saved, then the process leaves; of several processes all do."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from jax.experimental import multihost_utils

from bert_jax.cluster import signals
from bert_jax.cluster.heartbeat_client import HeartbeatClient
from bert_jax.errors import Interrupted, Preempted

SAME_SECONDS = (
    2.0  # two signals within this time are one: a scheduler signals a process and its supervisor, which passes it on
)
Item = TypeVar("Item")


class _LeftError(Preempted):
    """The wait for a batch is given up."""


class Termination:
    """Handles SIGTERM, which machines send before they go, and Ctrl-C, inside the context.

    A single process handles both by itself. Several leave it to JAX, which handles SIGTERM only and finds the step that
    all of them reach: there a Ctrl-C becomes a SIGTERM, and the other processes learn of it when they leave. Before the
    first step there is nothing to save, and the signal raises.
    """

    def __init__(self) -> None:
        self.saves = False  # set once there is a step to save
        self.interrupted = False  # by Ctrl-C
        self._signalled: float | None = None  # time of the first signal
        self._waits = False  # whether it waits for a batch
        self._asked, self._reached = 0, False
        self._contexts = contextlib.ExitStack()

    def __enter__(self) -> Termination:
        if threading.current_thread() is threading.main_thread():
            own = [signal.SIGINT] if HeartbeatClient.open is not None else [signal.SIGINT, signal.SIGTERM]
            self._contexts.enter_context(signals.heard(*own))
        signals.hearers.append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        signals.hearers.remove(self)
        self._contexts.close()
        if kind is None and self._signalled is not None:  # too late for all to leave together
            raise KeyboardInterrupt if self.interrupted else Preempted("told to end; the same command goes on")

    def hear(self, number: int) -> bool:
        """Note a signal, unless there is nothing to save; return whether it was noted."""
        if not self.saves:
            return False
        self.interrupted = self.interrupted or number == signal.SIGINT
        now = time.monotonic()
        if self._signalled is None:
            self._signalled = now
            with contextlib.suppress(OSError):
                os.write(2, b"\ntold to end: saving this step first; a second Ctrl-C ends at once\n")
        elif number == signal.SIGTERM and now - self._signalled > SAME_SECONDS:
            signals.end_at_once(128 + number)
        if HeartbeatClient.open is not None:
            if number == signal.SIGINT:
                os.kill(os.getpid(), signal.SIGTERM)  # JAX handles it
        elif self._waits:
            raise _LeftError("told to end while a batch was waited for; the same command goes on")
        return True

    def reached(self) -> bool:
        """Return whether to save and leave now. All processes ask at every step, and at every batch of an evaluation.

        JAX answers by the number of the question: it picks the first number that no process has asked yet. So questions
        are counted from 1, wherever the run resumes, and all processes ask the same ones.
        """
        if HeartbeatClient.open is None:
            return self._signalled is not None
        if not self._reached:
            self._asked += 1
            self._reached = bool(multihost_utils.reached_preemption_sync_point(self._asked))
        return self._reached

    def check(self) -> None:
        """Raise ``Preempted`` if it is time to leave. An evaluation or a probe is left between two batches, and the
        resumed run repeats it."""
        if self.reached():
            raise Preempted("told to end before another step was made; the same command goes on")

    def steps(self, batches: Iterable[Item]) -> Iterator[Item]:
        """Yield ``batches`` until it is time to end; a single process also ends while it waits for the next one."""
        iterator = iter(batches)
        while True:
            try:
                self._waits = True
                if HeartbeatClient.open is None and self._signalled is not None:
                    return
                item = next(iterator)
                self._waits = False
            except (StopIteration, _LeftError):
                return
            finally:
                self._waits = False
            yield item

    def ending(self, saved: str) -> Preempted:
        """Return the exception to raise once all is saved, as ``saved`` says; all processes call this together. A
        Ctrl-C on one of them counts for all: none is started again."""
        interrupted = self.interrupted
        if HeartbeatClient.open is not None:
            interrupted = any(map(json.loads, HeartbeatClient.open.exchange("the ending", json.dumps(interrupted))))
        kind = Interrupted if interrupted else Preempted
        return kind(f"told to end: {saved}, and the same command goes on from there")
