"""Handles Ctrl-C, SIGTERM, SIGHUP and SIGUSR1 in one process; in training, ``termination`` saves first.

If there is nothing to save, the first signal raises ``Preempted`` or ``KeyboardInterrupt``, so that commands clean up
as after any error. During training, a ``Termination`` notes the signal, and the run saves before it ends. A second
Ctrl-C ends the process at once. If the main thread is in a compiler, where Python handles no signals, another thread
does this.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from types import FrameType
from typing import Any, NoReturn, Protocol

from bert_jax.cluster.exit_codes import INTERRUPTED, PREEMPTED
from bert_jax.errors import Preempted

ECHO_SECONDS = 0.25  # two signals within this time are one Ctrl-C, sent by the terminal and passed on by a wrapper
_PROMPT_SECONDS = 10.0  # time to clean up after a Ctrl-C, for a process with nothing to save
_WORDS_SECONDS = 2.0  # time for the functions in ``last_words``


class _Hearer(Protocol):
    """Decides what a signal does in training (``termination``)."""

    saves: bool  # whether there is a step to save

    def hear(self, number: int) -> bool:
        """Note the signal and return True, or return False if there is nothing to save."""


# SLURM sends SIGUSR1 some time before a limit where --signal=USR1@SECONDS asks for it; SIGHUP: a terminal was closed.
TOLD_TO_END = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
hearers: list[_Hearer] = []  # the innermost is last; only the last one receives signals
last_words: list[Callable[[], Any]] = []  # functions called before the process ends at once, to tell others
unfinished: list[str] = []  # folders from which the same command goes on, if there is anything in them
_interrupts: list[float] = []  # time of the first Ctrl-C
_ends = threading.Lock()  # held by the thread that ends the process


class ToldError(Preempted):
    """This process was told to end where there is no step to save. Other processes of its job have not heard of it."""


@contextlib.contextmanager
def handle(*numbers: int) -> Iterator[None]:
    """Context manager: handle the signals ``numbers`` inside the context.

    The innermost of ``hearers`` notes a signal; if there is none, the signal raises an exception. This does nothing
    outside of the main thread, nor for a signal that is ignored, as Ctrl-C is in the background of a shell script and
    SIGHUP under nohup.
    """
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
    """Context manager: if the process ends at once inside the context, ``word`` is called before."""
    last_words.append(word)
    try:
        yield
    finally:
        last_words.remove(word)


@contextlib.contextmanager
def shield() -> Iterator[None]:
    """Context manager: keep Ctrl-C and ``TOLD_TO_END`` from processes that are started inside the context.

    This process handles the signals in another of its threads, or when the context ends.
    """
    resource_tracker.ensure_running()  # its start unblocks two of the signals, so start it first
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, *TOLD_TO_END})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def interrupted() -> str:
    """Return the words with which an interrupted command ends: what is kept, and how to go on."""
    for folder in unfinished:
        with contextlib.suppress(OSError):
            if os.listdir(folder):
                return f"interrupted; {folder} keeps what is done, and the same command goes on"
    return "interrupted"


def end_with_parent() -> None:
    """End this process as soon as its parent has ended, if ``multiprocessing`` started it."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def end_at_once(code: int = INTERRUPTED) -> None:
    """End the process, whatever its threads are doing, after calling ``last_words``."""
    if not _ends.acquire(blocking=False):  # another thread is ending the process
        time.sleep(2 * _WORDS_SECONDS)

    def say() -> None:
        for word in list(last_words):
            with contextlib.suppress(Exception):
                word()

    speaker = threading.Thread(target=say, daemon=True)
    speaker.start()
    speaker.join(_WORDS_SECONDS)
    with contextlib.suppress(OSError):
        os.write(2, f"\n{interrupted()}\n".encode())
    os._exit(code)


def leave(code: int) -> NoReturn:
    """End a process that has cleaned up.

    Python's own exit could be delayed by an interrupted compiler and then crash, or wait for other processes.
    """
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def listen() -> None:
    """Handle signals for the whole program: Ctrl-C prints no traceback, and a second one ends the program at once."""
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
    """Handle a signal in the main thread, where Python calls this between two instructions."""
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
    raise ToldError("told to end, outside training, where there is no step to save; the same command begins or goes on")


def _watch(reader: socket.socket, _writer: socket.socket) -> None:
    """Handle Ctrl-C while the main thread runs no handler because it is inside a compiler or waits for a device."""
    first: float | None = None
    while numbers := reader.recv(64):
        if signal.SIGINT not in numbers or signal.getsignal(signal.SIGINT) is not _on_signal:
            continue
        now = time.monotonic()
        if first is None:
            first = now
            if not (hearers and hearers[-1].saves):
                timer = threading.Timer(_PROMPT_SECONDS, end_at_once)
                timer.daemon = True
                timer.start()
        elif now - first > ECHO_SECONDS:
            end_at_once()


def _unraisable(found: Any) -> None:
    """End the process if the exception that should end it came inside a finalizer; Python would print it and go on."""
    if issubclass(found.exc_type, KeyboardInterrupt | Preempted):
        end_at_once(PREEMPTED if issubclass(found.exc_type, Preempted) else INTERRUPTED)
    sys.__unraisablehook__(found)
