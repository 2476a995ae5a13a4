"""A process that is alone in its job and stands still ends with the stacks of all its threads.

Of several processes their heartbeats see to it. What is armed here is a thread of C, so it ends a process that hangs
inside a library too; the exit code is ``CRASHED``, after which ``--restarts`` and launchers start the command again.
"""

from __future__ import annotations

import faulthandler
import time
from types import TracebackType
from typing import ClassVar

STDERR = 2
MOST_SECONDS = 1e7  # a third of a year; the system's own clocks end somewhere above
STEPS = ("first step", "training", "reading")  # watched from the first time on; what else is done, once it was done
FIRST_SECONDS = 3600.0  # that they may take the first time
TIMES_LONGEST = 20.0  # what was done before may take this many times as long as it ever took
ARMED_SECONDS = 1.0  # from one arming to the next, which costs a thread


class Watchdog:
    """Watches the process inside the context. ``Watchdog.open`` is the one that does, if any.

    Args:
      stall_seconds: that a process may always stand still.
    """

    open: ClassVar[Watchdog | None] = None

    def __init__(self, stall_seconds: float):
        self._least = stall_seconds
        self._state, self._since = "", time.monotonic()
        self._longest: dict[str, float] = {}
        self._armed: tuple[float, float] | None = None  # when, for how long

    def __enter__(self) -> Watchdog:
        Watchdog.open = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        Watchdog.open = None
        faulthandler.cancel_dump_traceback_later()

    def at(self, state: str) -> None:
        """The process gets on: it does ``state`` now."""
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
        """Seconds that the process may stand still; None: as long as it likes."""
        if state in self._longest:
            return max(self._least, TIMES_LONGEST * self._longest[state])
        return FIRST_SECONDS if state in STEPS else None
