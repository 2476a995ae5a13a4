"""Shows the progress of a run as one line. A terminal shows it in place; other outputs get a new line at intervals."""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TextIO

from bert_jax.metric_names import TOTAL
from bert_jax.program import duration
from bert_jax.reporting.formats import count, is_number, phase_label

_REDRAW_SECONDS, _EVERY_SECONDS = 0.1, 10.0  # least time between two drawings of the line: on a terminal, elsewhere
# Seconds between two lines that say for how long something has run: on a terminal, and elsewhere.
COUNT_SECONDS, LINE_SECONDS = 1.0, 20.0
_NOTEBOOK_COLUMNS = 116
_RECENT = 25  # the speed is the median over so many intervals, so one that holds a compilation does not count


class ProgressLine:
    """Shows the progress of a run of ``total_steps`` on ``stream``.

    No method raises. If the stream is closed, the display stops and the run goes on.
    """

    def __init__(
        self,
        total_steps: int,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        order: Sequence[str] = (),
    ):
        """``order``: metrics in their order in the line; other metrics come after them."""
        # A notebook shows standard error as a failure.
        usual = sys.stdout if _is_notebook(sys.stderr) else sys.stderr
        self.total_steps, self._stream, self._step = total_steps, stream or usual, 0
        self._order = list(order)
        self._work: Callable[[int], float] = float
        self._clock, self._notebook = clock, _is_notebook(self._stream)
        self._live = self._notebook or _is_terminal(self._stream)
        self._period = _REDRAW_SECONDS if self._live else _EVERY_SECONDS
        self._paces: deque[float] = deque(maxlen=_RECENT)  # seconds per unit of work
        self._last: tuple[float, float] | None = None  # the work done at the last update, and when it was
        self._phase: str | None = None
        self._metrics: Mapping[str, Any] = {}
        self._drawn_at: float | None = None  # None if nothing has been drawn yet
        self._told_at = clock()  # when ``doing`` last showed something
        self._pending = False  # whether the newest figures are not on the screen yet
        self._closed = False

    def start(self, step: int, work: Callable[[int], float] = float) -> None:
        """Start the display at ``step``, which is not 0 if the run is resumed.

        Args:
          work: a function step -> cost of all steps before it, in any unit. By default all steps cost the same.
        """
        self._step, self._work = step, work

    def update(self, step: int, metrics: Mapping[str, Any], phase: str | None = None) -> None:
        """Show that ``step`` steps are done.

        ``metrics`` are the newest figures; a figure that is missing or None is not shown.
        """
        now = self._clock()
        done = self._work(step)
        if phase != self._phase:  # its steps may take longer
            self._paces.clear()
        if self._last and done > self._last[0]:
            self._paces.append(max(0.0, now - self._last[1]) / (done - self._last[0]))
        self._last = done, now
        self._step, self._metrics, self._phase, self._pending = step, metrics, phase, True
        if self._drawn_at is None or step == self.total_steps or now - self._drawn_at >= self._period:
            self._draw()

    def note(self, text: str) -> None:
        """Print text that stays on the screen, above the progress line."""
        if self._live:
            self._write(f"{self._clear_code()}{text}\n")
            if self._drawn_at is not None:
                self._draw()
        else:
            self._write(text + "\n")

    @contextlib.contextmanager
    def outside(self, activity: str, counted: bool = True) -> Iterator[None]:
        """Context manager: inside the block, the run does something other than steps, such as ``compiling``.

        A terminal shows the activity. If it is ``counted``, a line now and then says for how long it has run; leave an
        activity that reports its progress (``doing``) uncounted. The time in the block does not count for the speed.
        The block must release Python's global lock now and then, as XLA does while it compiles.
        """
        start = self._told_at = self._clock()
        if self._live:
            self._put(f"{activity} ...")
        ended = threading.Event()

        def count() -> None:
            while not ended.wait(COUNT_SECONDS if self._live else LINE_SECONDS):
                self._put(f"still {activity}: {duration(self._clock() - start)} so far")

        thread = threading.Thread(target=count, name="activity", daemon=True)
        if counted:
            thread.start()
        try:
            yield
        finally:
            ended.set()
            if counted:
                thread.join()
            if self._last:
                self._last = self._last[0], self._last[1] + self._clock() - start
            if self._live:
                self._write(self._clear_code()) if self._drawn_at is None else self._draw()

    def doing(self, text: str) -> None:
        """Show how far something other than steps is, such as an evaluation, at most once in a while."""
        if (now := self._clock()) - self._told_at >= self._period:
            self._told_at = now
            self._put(text)

    def _put(self, text: str) -> None:
        """Show a line, on a terminal in place of the last."""
        self._write(self._clear_code() + text[: self._width()] if self._live else f"{text}\n")

    def finish(self) -> None:
        """Show the last figures and leave them on the screen."""
        if self._pending:
            self._draw()
        if self._live and self._drawn_at is not None:
            self._write("\n")
        self._drawn_at = None

    @property
    def eta_seconds(self) -> float | None:
        """The estimated seconds until the last step; None before the second update."""
        if not self._paces:
            return None
        return statistics.median(self._paces) * max(0.0, self._work(self.total_steps) - self._work(self._step))

    def line(self, width: int | None = None) -> str:
        """Return the progress line. If it is longer than ``width`` columns, the least important parts are left out."""
        done = min(1.0, self._step / self.total_steps) if self.total_steps else 1.0
        speed: Any = self._metrics.get("tokens_per_second")
        losses = [*(n for n in self._order if n in self._metrics), *(n for n in self._metrics if n not in self._order)]
        terms = [name.removesuffix("_loss") for name in losses if name.endswith("_loss") and "/" not in name]
        if TOTAL in losses or not terms:  # in fine-tuning, the first term has the metrics loss and accuracy
            terms = ["", *(term for term in terms if f"{term}_loss" != TOTAL)]
        first, others = terms[:1], terms[1:]
        parts = {
            "word": "step",
            "step": f"{self._step:,}/{self.total_steps:,}",
            "percent": f"{done:4.0%}",
            "phase": phase_label(self._phase) if self._phase else "",
            "first": self._figures(first),
            "others": self._figures(others),
            "speed": f"{count(speed)} tok/s" if is_number(speed) else "",
            "eta": f"ETA {duration(self.eta_seconds).replace(' ', '')}" if self.eta_seconds is not None else "",
        }
        for drop in (None, "phase", "percent", "word", "speed", "others", "first", "eta"):
            parts.pop(drop or "", None)
            text = "  ".join(part for part in parts.values() if part)
            if width is None or len(text) <= width:
                break
        return text[:width]

    def _figures(self, terms: Sequence[str]) -> str:
        """Return the known loss and accuracy of each loss term as text: ``mlm 4.201 acc 0.310``."""
        figures = []
        for term in terms:
            prefix = f"{term}_" if term else ""
            for name, label in ((f"{prefix}loss", term or "loss"), (f"{prefix}accuracy", "acc")):
                if is_number(self._metrics.get(name)):
                    figures.append(f"{label} {self._metrics[name]:.3f}")
        return " ".join(figures)

    def _clear_code(self) -> str:
        """Return the characters that empty the current line; a notebook does not know escape codes."""
        return f"\r{' ' * _NOTEBOOK_COLUMNS}\r" if self._notebook else "\r\x1b[K"

    def _width(self) -> int:
        if self._notebook:
            return _NOTEBOOK_COLUMNS
        with contextlib.suppress(OSError, ValueError, AttributeError):
            columns = os.get_terminal_size(self._stream.fileno()).columns
            return max(20, (columns or 80) - 1)
        return 79

    def _draw(self) -> None:
        self._drawn_at, self._pending = self._clock(), False
        self._write(self._clear_code() + self.line(self._width()) if self._live else self.line() + "\n")

    def _write(self, text: str) -> None:
        if self._closed:
            return
        try:
            encoding = getattr(self._stream, "encoding", None) or "utf-8"
            self._stream.write(text.encode(encoding, "replace").decode(encoding))
            self._stream.flush()
        except (AttributeError, OSError, ValueError, LookupError):  # AttributeError: Python has no stderr
            self._closed = True


def progress_notes(
    note: Callable[[str], None], every_seconds: float = 10.0, what: str = "rows"
) -> Callable[[int, int], None]:
    """Return a function (rows done, all rows) that passes a line to ``note`` now and then."""
    told_at = time.monotonic()

    def show(done: int, rows: int) -> None:
        nonlocal told_at
        if done < rows and time.monotonic() - told_at >= every_seconds:
            told_at = time.monotonic()
            note(f"{done:,} of {rows:,} {what}")

    return show


def _is_notebook(stream: TextIO) -> bool:
    """Return whether ``stream`` is shown in a notebook (Jupyter, Colab, VS Code), where a line can be drawn anew."""
    return type(stream).__module__.partition(".")[0] == "ipykernel"


def _is_terminal(stream: TextIO) -> bool:
    """Return whether ``stream`` is a terminal on which a line can be replaced."""
    try:
        return stream.isatty() and os.environ.get("TERM", "") != "dumb"
    except (AttributeError, ValueError):
        return False
