"""Says what a command is doing, and for how long already, while nothing else appears on the screen."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from bert_jax.program import duration
from bert_jax.reporting.progress import is_terminal

REDRAW_SECONDS = 1.0
LINE_SECONDS = 20.0


@contextlib.contextmanager
def shown(activity: str, note: Callable[[str], None] | None, stream: TextIO | None = None) -> Iterator[None]:
    """Context manager: while its block runs, show ``activity`` and the time that it has taken so far.

    A terminal shows one line that counts the seconds and disappears at the end. Elsewhere ``note`` gets a line every
    ``LINE_SECONDS``; a block that is faster shows nothing. The block must give up Python's lock now and then, as XLA
    does while it compiles.

    Args:
      note: prints a line. If None, nothing is shown, on a terminal either.
      stream: what the user sees; by default stderr.
    """
    if note is None:
        yield
        return
    stream = sys.stderr if stream is None else stream
    live, start, ended = is_terminal(stream), time.monotonic(), threading.Event()
    write_line = _in_place(stream) if live else note

    def count() -> None:
        while not ended.wait(REDRAW_SECONDS if live else LINE_SECONDS):
            write_line(f"still {activity}: {duration(time.monotonic() - start)} so far")

    thread = threading.Thread(target=count, name="activity", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        if live:
            write_line("")


def _in_place(stream: TextIO) -> Callable[[str], None]:
    """Return a function that replaces the last line of a terminal."""

    def write(text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # the terminal is gone; the work goes on
            width = os.get_terminal_size(stream.fileno()).columns or 80
            stream.write(f"\r\x1b[K{text[: width - 1]}")
            stream.flush()

    return write
