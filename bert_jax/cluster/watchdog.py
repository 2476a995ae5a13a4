"""Notes what this process is doing and since when; ends it, with the stacks of all its threads, if it stands still.

The timer is a C thread, so it ends even a process that hangs inside a library. The exit code is ``CRASHED``, after
which ``--restarts`` and launchers start the command again. In a job of several processes all wait for the one that
stands still, so process 0 names this process (see ``job``); the timer is only for a process in which no thread can run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import time
from collections.abc import Iterator
from typing import ClassVar, Literal

_STDERR = 2
MOST_SECONDS = 1e7  # the largest limit, a third of a year; much larger limits overflow the system's timers
Activity = Literal[  # what a process says that it is doing
    "starting", "restoring", "compiling", "first step", "reading", "training", "evaluating", "scoring",
    "profiling", "saving", "exporting", "reporting", "finishing",
]  # fmt: skip
# The first time, a process that is alone may be in these states for ``FIRST_SECONDS``, and in others without a limit.
STEPS: tuple[Activity, ...] = ("first step", "training", "reading")
# States that several processes may always be in for ``stall_seconds``: compiling or using a store is not faster the
# second time, and reading the first row of an epoch or a phase may include planning it.
_UNEVEN: tuple[Activity, ...] = (
    "compiling", "first step", "restoring", "reading", "profiling", "saving", "finishing",
)  # fmt: skip
FIRST_SECONDS = 3600.0  # how long a state may last the first time
TIMES_LONGEST = 20.0  # a repeated state may last this many times its longest duration so far
_TIMES_LONGEST_TOGETHER = 5.0  # the same in a job of several processes, of which all wait for one
_ARMED_SECONDS = 1.0  # least time before the timer is set again, since each setting starts a thread
_SILENT_TIMES = 2.0  # a process of several in which no thread runs ends after this many times ``heartbeat_seconds``


@dataclasses.dataclass(frozen=True)
class Progress:
    """The activity of a process.

    Attributes:
      moves: how often the process has reported progress.
      age: seconds since the last progress.
      limit: seconds that may pass from one progress to the next.
    """

    step: int
    moves: int
    state: str
    age: float
    limit: float


class Watchdog:
    """Context manager that watches the process. ``Watchdog.open`` is the active watchdog, or None.

    Args:
      stall_seconds: a repeated state may always last this long.
      heartbeat_seconds: in a job of several processes, the same for states that are not ``_UNEVEN``.
    """

    open: ClassVar[Watchdog | None] = None

    def __init__(self, stall_seconds: float = 900.0, heartbeat_seconds: float | None = None):
        self.stall_seconds = stall_seconds
        self._heartbeat_seconds = heartbeat_seconds
        self._now = 0, "starting", time.monotonic(), 0  # step, state, since when, number of reports
        self._longest: dict[str, float] = {}
        self._armed: tuple[float, float] | None = None  # when the timer was set, and its limit

    def __enter__(self) -> Watchdog:
        Watchdog.open = self
        return self

    def __exit__(self, *_: object) -> None:
        Watchdog.open = None
        faulthandler.cancel_dump_traceback_later()

    def at(self, step: int, state: Activity) -> None:
        """Report progress: the process is at ``step`` and is now doing ``state``, such as "saving"."""
        (before, left, since, moves), now = self._now, time.monotonic()
        if moves:
            self._longest[left] = max(self._longest.get(left, 0.0), now - since)
        # A caller that reports a save may know only the step that was logged last.
        self._now = max(step, before), state, now, moves + 1
        if self._heartbeat_seconds is not None:
            return
        limit = self._limit(state)
        if limit is None:
            faulthandler.cancel_dump_traceback_later()
            self._armed = None
        elif self._armed is None or self._armed[1] != limit or now - self._armed[0] > _ARMED_SECONDS:
            faulthandler.dump_traceback_later(limit, exit=True, file=_STDERR)
            self._armed = now, limit

    def progress(self) -> Progress:
        """Return what this process is doing now.

        In a job of several processes a thread calls this again and again, which sets the timer again.
        """
        if self._heartbeat_seconds is not None:
            faulthandler.dump_traceback_later(_SILENT_TIMES * self._heartbeat_seconds, exit=True, file=_STDERR)
        step, state, since, moves = self._now
        return Progress(step, moves, state, time.monotonic() - since, self._limit(state) or MOST_SECONDS)

    def _limit(self, state: str) -> float | None:
        """Return the number of seconds for which ``state`` may last, or None if there is no limit."""
        alone = self._heartbeat_seconds is None
        if state in self._longest:
            least = self.stall_seconds if alone or state in _UNEVEN else self._heartbeat_seconds
            return max(least or 0.0, (TIMES_LONGEST if alone else _TIMES_LONGEST_TOGETHER) * self._longest[state])
        return FIRST_SECONDS if state in STEPS or not alone else None


@contextlib.contextmanager
def watch_process(stall_seconds: float) -> Iterator[None]:
    """Context manager: watch this process in the block; in a job of several processes the job's watchdog goes on."""
    if Watchdog.open is not None:
        Watchdog.open.stall_seconds = stall_seconds
        yield
    else:
        with Watchdog(stall_seconds):
            yield
