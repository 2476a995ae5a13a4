"""Told to end in training: the step is saved, then the process leaves; of several processes all of them do."""

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
    2.0  # in which two signals are one: a scheduler tells a process, and the supervisor that it tells as well
)
Item = TypeVar("Item")


class _LeftError(Preempted):
    """Waiting for a batch is given up."""


class Termination:
    """SIGTERM, as machines send it before they go, and Ctrl-C, inside the context.

    One process hears both by itself. Several leave it to JAX, which knows SIGTERM alone and finds the step that all of
    them reach: there a Ctrl-C becomes a SIGTERM, and the others are told once they leave. Before a first step was made
    there is nothing to save, and the signal raises.
    """

    def __init__(self) -> None:
        self.saves = False  # set once a step was made
        self.interrupted = False  # by Ctrl-C
        self._signalled: float | None = None  # when
        self._waits = False  # for a batch
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
        if kind is None and self._signalled is not None:  # told too late for the others to leave together
            raise KeyboardInterrupt if self.interrupted else Preempted("told to end; the same command goes on")

    def hear(self, number: int) -> bool:
        """Take a signal down, unless there is nothing to save."""
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
                os.kill(os.getpid(), signal.SIGTERM)  # to JAX
        elif self._waits:
            raise _LeftError("told to end while a batch was waited for; the same command goes on")
        return True

    def reached(self) -> bool:
        """Whether to save and leave now. Asked at every step, and by evaluations at every batch, by all processes.

        JAX agrees on the first question that no process has asked yet: questions are counted from 1, wherever the run
        goes on from, and all processes ask the same ones.
        """
        if HeartbeatClient.open is None:
            return self._signalled is not None
        if not self._reached:
            self._asked += 1
            self._reached = bool(multihost_utils.reached_preemption_sync_point(self._asked))
        return self._reached

    def check(self) -> None:
        """Raise ``Preempted`` where it is time to leave: an evaluation or a probe is left between two batches, and the
        run that goes on makes it up."""
        if self.reached():
            raise Preempted("told to end before another step was made; the same command goes on")

    def steps(self, batches: Iterable[Item]) -> Iterator[Item]:
        """``batches`` until told to end; of one process also while the next one is waited for."""
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
        """What to raise once all is saved, which ``saved`` says; asked by all processes together. A Ctrl-C on one of
        them counts for all: none is started again."""
        interrupted = self.interrupted
        if HeartbeatClient.open is not None:
            interrupted = any(map(json.loads, HeartbeatClient.open.exchange("the ending", json.dumps(interrupted))))
        kind = Interrupted if interrupted else Preempted
        return kind(f"told to end: {saved}, and the same command goes on from there")
