"""Ends training on SIGTERM, SIGHUP, SIGUSR1 or Ctrl-C: saves the step, then ends the process.

In a job, all processes end together.
"""

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

from bert_jax.cluster import distributed, signals
from bert_jax.errors import Interrupted, Preempted

SAME_SECONDS = 2.0  # two signals within this time are one, which a scheduler sent to the process and its supervisor
Item = TypeVar("Item")


class _LeftError(Preempted):
    """The process was told to end while it waited for a batch, so it gives up waiting."""


class Termination:
    """Context manager that handles Ctrl-C and ``TOLD_TO_END``: the machine or the terminal goes, or the time is over.

    In a job of one process this class handles the signals itself. In a job of several processes JAX handles SIGTERM
    and chooses a step at which all processes can stop together. JAX handles no other, so another is turned into
    a SIGTERM, and the other processes are told at the end if it was a Ctrl-C. Before the first step there is nothing
    to save, so a signal raises an exception at once.
    """

    def __init__(self) -> None:
        self.saves = False  # set once there is a step to save
        self.interrupted = False  # whether a signal was Ctrl-C
        self._signalled = False
        self._insisted: float | None = None  # time of the first SIGTERM or Ctrl-C
        self._waits = False  # whether the process is waiting for a batch
        self._asked, self._reached = 0, False
        self._contexts = contextlib.ExitStack()

    def __enter__(self) -> Termination:
        if threading.current_thread() is threading.main_thread():
            own = [signal.SIGINT, *signals.TOLD_TO_END]
            if distributed.joined():
                own.remove(signal.SIGTERM)
            self._contexts.enter_context(signals.handle(*own))
        signals.hearers.append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        signals.hearers.remove(self)
        self._contexts.close()
        if kind is None and self._signalled:  # too late for all to leave together
            raise KeyboardInterrupt if self.interrupted else Preempted("told to end; the same command goes on")

    def hear(self, number: int) -> bool:
        """Note the signal and return True, or return False if there is nothing to save yet."""
        if not self.saves:
            return False
        self.interrupted = self.interrupted or number == signal.SIGINT
        now, first = time.monotonic(), not self._signalled
        if first:
            self._signalled = True
            with contextlib.suppress(OSError):
                os.write(2, b"\ntold to end: saving this step first; a second signal ends at once\n")
        if number in (signal.SIGTERM, signal.SIGINT):  # the others come before a SIGTERM, or several times
            self._insisted = self._insisted or now
            if number == signal.SIGTERM and now - self._insisted > SAME_SECONDS:
                signals.end_at_once(128 + number)
        if distributed.joined():
            if first and number != signal.SIGTERM:
                os.kill(os.getpid(), signal.SIGTERM)  # JAX handles it
        elif self._waits:
            raise _LeftError("told to end while a batch was waited for; the same command goes on")
        return True

    def must_end(self) -> bool:
        """Return whether to save and end now.

        Every process must call this at each step and at each batch of an evaluation. Each call passes JAX a call
        number. When a stop is requested, JAX picks the first call number that no process has reached yet, and every
        process stops at that call. This works only if all processes make the same sequence of calls. Call numbers start
        at 1, even in a resumed run.
        """
        if not distributed.joined():
            return self._signalled
        if not self._reached:
            self._asked += 1
            self._reached = bool(multihost_utils.reached_preemption_sync_point(self._asked))
        return self._reached

    def check(self) -> None:
        """Raise ``Preempted`` if it is time to end.

        This is called between two batches of an evaluation, which the resumed run then repeats.
        """
        if self.must_end():
            raise Preempted("told to end before another step was made; the same command goes on")

    def steps(self, batches: Iterable[Item]) -> Iterator[Item]:
        """Yield ``batches`` until it is time to end. A single process also stops while it waits for the next batch."""
        iterator = iter(batches)
        while True:
            try:
                self._waits = True
                if not distributed.joined() and self._signalled:
                    return
                item = next(iterator)
                self._waits = False
            except (StopIteration, _LeftError):
                return
            finally:
                self._waits = False
            yield item

    def ending(self, saved: str) -> Preempted:
        """Return the exception to raise when everything is saved, as ``saved`` says. All processes call this together.

        If one process received Ctrl-C, all processes act as if they had received it: none is started again.
        """
        interrupted = distributed.exchange("the ending", json.dumps(self.interrupted))
        kind = Interrupted if any(map(json.loads, interrupted)) else Preempted
        return kind(f"told to end: {saved}, and the same command goes on from there")
