"""Ends a process that is alone in its job and stands still, and prints the stacks of all its threads.

Several processes watch each other by heartbeats instead. The timer is a thread of C, so it ends even a process that
hangs inside a library; the exit code is ``CRASHED``, after which ``--restarts`` and launchers start the command again.
"""

from __future__ import annotations

import faulthandler
import time
from types import TracebackType
from typing import ClassVar

STDERR = 2
MOST_SECONDS = 1e7  # a third of a year; the system's own clocks end somewhere above
STEPS = ("first step", "training", "reading")  # these are watched from the first time on, other states from the second
FIRST_SECONDS = 3600.0  # they may take so long the first time
TIMES_LONGEST = 20.0  # a repeated state may last this many times its longest time so far
ARMED_SECONDS = 1.0  # least time between two armings, each of which costs a thread


class Watchdog:
    """Watches the process inside the context. ``Watchdog.open`` is the active one, if any.

    Args:
      stall_seconds: a process may always stand still for so long.
    """

    open: ClassVar[Watchdog | None] = None

    def __init__(self, stall_seconds: float):
        self._least = stall_seconds
        self._state, self._since = "", time.monotonic()
        self._longest: dict[str, float] = {}
        self._armed: tuple[float, float] | None = None  # when it was armed, and for how long

    def __enter__(self) -> Watchdog:
        Watchdog.open = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        Watchdog.open = None
        faulthandler.cancel_dump_traceback_later()

    def at(self, state: str) -> None:
        """Report progress: the process does ``state`` now."""
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
        """Return the seconds for which the process may stand still; None: without limit."""
        if state in self._longest:
            return max(self._least, TIMES_LONGEST * self._longest[state])
        return FIRST_SECONDS if state in STEPS else None
