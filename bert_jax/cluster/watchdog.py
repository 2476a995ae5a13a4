"""Ends a process that makes no progress, and prints the stacks of all its threads. It is for jobs of one process.

Several processes watch each other by heartbeats instead. The timer is a C thread, so it ends even a process that hangs
inside a library. The exit code is ``CRASHED``, after which ``--restarts`` and launchers start the command again.
"""

from __future__ import annotations

import faulthandler
import time
from types import TracebackType
from typing import ClassVar

from bert_jax.cluster.messages import Activity

STDERR = 2
MOST_SECONDS = 1e7  # the largest limit, a third of a year; much larger ones overflow the system's timers
# States watched from the first time on; others from the second time.
STEPS: tuple[Activity, ...] = ("first step", "training", "reading")
FIRST_SECONDS = 3600.0  # how long the states in ``STEPS`` may last the first time
TIMES_LONGEST = 20.0  # a repeated state may last this many times its longest duration so far
ARMED_SECONDS = 1.0  # least time before the timer is set again, since each setting starts a thread


class Watchdog:
    """Context manager that watches the process. ``Watchdog.open`` is the active watchdog, or None.

    Args:
      stall_seconds: a repeated state may always last this long.
    """

    open: ClassVar[Watchdog | None] = None

    def __init__(self, stall_seconds: float):
        self._least = stall_seconds
        self._state, self._since = "", time.monotonic()
        self._longest: dict[str, float] = {}
        self._armed: tuple[float, float] | None = None  # when the timer was set, and its limit

    def __enter__(self) -> Watchdog:
        Watchdog.open = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        Watchdog.open = None
        faulthandler.cancel_dump_traceback_later()

    def at(self, state: Activity) -> None:
        """Report progress: the process is now doing ``state``, such as "saving"."""
        now = time.monotonic()
        if self._state:
            self._longest[self._state] = max(self._longest.get(self._state, 0.0), now - self._since)
        self._state, self._since = state, now
        limit = self._limit(state)
        if limit is None:
            faulthandler.cancel_dump_traceback_later()
            self._armed = None
        elif self._armed is None or self._armed[1] != limit or now - self._armed[0] > ARMED_SECONDS:
            faulthandler.dump_traceback_later(limit, exit=True, file=STDERR)
            self._armed = now, limit

    def _limit(self, state: str) -> float | None:
        """Return the number of seconds for which ``state`` may last, or None if there is no limit."""
        if state in self._longest:
            return max(self._least, TIMES_LONGEST * self._longest[state])
        return FIRST_SECONDS if state in STEPS else None
