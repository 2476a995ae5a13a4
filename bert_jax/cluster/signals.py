"""SIGTERM and Ctrl-C, as one process hears them.

The first one raises (``Preempted``, ``KeyboardInterrupt``) where there is nothing to save, so that commands clean up as
they do after any error; a ``Termination`` takes it down instead and saves first. A second Ctrl-C ends the process at
once, from a thread where the main one is in a compiler and hears nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from types import FrameType
from typing import Any, Protocol

from bert_jax.cluster.exit_codes import INTERRUPTED, PREEMPTED
from bert_jax.errors import Preempted

ECHO_SECONDS = 0.25  # a wrapper that passes on a Ctrl-C which the terminal has sent to all makes two of one
PROMPT_SECONDS = 10.0  # that a process with nothing to save has to clean up after a Ctrl-C
WORDS_SECONDS = 2.0  # that the last words of a process may take


class Hearer(Protocol):
    """Who takes a signal down instead of being ended by it."""

    @property
    def saves(self) -> bool:
        """Whether there is something to save."""
        ...

    def hear(self, number: int) -> bool:
        """Whether the signal is taken down: the process leaves by itself, soon."""
        ...


hearers: list[Hearer] = []  # the last one is asked
last_words: list[Callable[[], Any]] = []  # before the process ends at once: what the others should know
_interrupts: list[float] = []  # when Ctrl-C was heard first
_ends = threading.Lock()  # of the one who ends the process


@contextlib.contextmanager
def heard(*numbers: int) -> Iterator[None]:
    """Hear ``numbers`` inside the context, as the last hearer or by raising. Without effect outside of the main thread,
    and for an interrupt that is ignored, as in the background of a shell script."""
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in numbers:
            if signal.getsignal(number) not in (signal.SIG_IGN, _on_signal):
                before[number] = signal.signal(number, _on_signal)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if signal.SIGINT in before:
            _interrupts.clear()


@contextlib.contextmanager
def before_the_end(word: Callable[[], Any]) -> Iterator[None]:
    """Inside the context ``word`` is called before the process ends at once."""
    last_words.append(word)
    try:
        yield
    finally:
        last_words.remove(word)


@contextlib.contextmanager
def shielded() -> Iterator[None]:
    """Processes that are started inside the context never hear SIGTERM and Ctrl-C. This one does, from another of its
    threads or once the context ends."""
    resource_tracker.ensure_running()  # which lets both in when it is started
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_at_once(code: int = INTERRUPTED) -> None:
    """End the process, whatever its threads do."""
    if not _ends.acquire(blocking=False):  # another thread does
        time.sleep(2 * WORDS_SECONDS)

    def say() -> None:
        for word in list(last_words):
            with contextlib.suppress(Exception):
                word()

    speaker = threading.Thread(target=say, daemon=True)
    speaker.start()
    speaker.join(WORDS_SECONDS)
    with contextlib.suppress(OSError):
        os.write(2, b"\ninterrupted\n")
    os._exit(code)


def leave(code: int) -> None:
    """End a process that has cleaned up; a compiler that was interrupted would hold it up, then crash it."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def listen() -> None:
    """For a whole program: from now on Ctrl-C leaves no traceback, and the second one ends it at once."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) in (
        signal.SIG_IGN,
        _on_signal,
    ):
        return
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    signal.signal(signal.SIGINT, _on_signal)
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(reader, writer), daemon=True, name="signals").start()
    sys.unraisablehook = _unraisable


def _on_signal(number: int, _: FrameType | None) -> None:
    """In the main thread, between two steps of the interpreter."""
    if number == signal.SIGINT:
        now = time.monotonic()
        if _interrupts and now - _interrupts[-1] > ECHO_SECONDS:
            end_at_once()
        if _interrupts:
            return
        _interrupts.append(now)
    if hearers and hearers[-1].hear(number):
        return
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise Preempted("told to end before there was anything to save; the same command begins or goes on")


def _watch(reader: socket.socket, _writer: socket.socket) -> None:
    """Hear what the main thread may not: it runs no handler until a compiler or a device gives it back."""
    first: float | None = None
    while numbers := reader.recv(64):
        if signal.SIGINT not in numbers or signal.getsignal(signal.SIGINT) is not _on_signal:
            continue
        now = time.monotonic()
        if first is None:
            first = now
            if not (hearers and hearers[-1].saves):
                timer = threading.Timer(PROMPT_SECONDS, end_at_once)
                timer.daemon = True
                timer.start()
        elif now - first > ECHO_SECONDS:
            end_at_once()


def _unraisable(found: Any) -> None:
    """An end that came inside a finalizer, where Python prints it and goes on, ends the process all the same."""
    if issubclass(found.exc_type, KeyboardInterrupt | Preempted):
        end_at_once(PREEMPTED if issubclass(found.exc_type, Preempted) else INTERRUPTED)
    sys.__unraisablehook__(found)
