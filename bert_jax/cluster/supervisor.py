"""Starts a process again if it crashed, or if it ended because another process was lost: ``--restarts=N``."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from types import FrameType

from bert_jax.cluster.exit_codes import BAD_INPUT, DONE, FINAL, INTERRUPTED, PEER_LOST, PREEMPTED
from bert_jax.cluster.signals import ECHO_SECONDS, TOLD_TO_END
from bert_jax.program import duration

_WAIT_SECONDS = 5.0  # wait before a restart, so that the last process of the old job is gone
_KILL_SECONDS = 3.0  # time for a process to end at once before it is killed


def supervise(arguments: Sequence[str], restarts: int, wait_seconds: float = _WAIT_SECONDS) -> int:
    """Run ``bert-jax`` with ``arguments`` until it is done, or has crashed and been restarted ``restarts`` times.

    It is not started again after the exit codes 0, 2 and 130 (``exit_codes.FINAL``). Ctrl-C and the signals
    ``TOLD_TO_END`` end the supervision after the process has saved and ended: whoever sent the signal decides about a
    new start. All are passed on as SIGTERM: a terminal also sends Ctrl-C to the process itself, and a second Ctrl-C
    would end it at once. If another process of the job was told to end, this process has saved and ended too; it is
    started again, and that does not count as a restart.

    Returns:
      The exit code of the last process, or ``INTERRUPTED`` after Ctrl-C.
    """
    received: list[tuple[int, float]] = []
    child: subprocess.Popen[bytes] | None = None

    def tell(child: subprocess.Popen[bytes]) -> None:
        interrupts = [when for number, when in received if number == signal.SIGINT]
        twice = bool(interrupts) and interrupts[-1] - interrupts[0] > ECHO_SECONDS
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(signal.SIGINT if twice else signal.SIGTERM)
        if twice:
            killer = threading.Timer(_KILL_SECONDS, child.kill)
            killer.daemon = True
            killer.start()

    def hear(number: int, frame: FrameType | None) -> None:
        received.append((number, time.monotonic()))
        if child is not None and child.returncode is None:
            tell(child)

    for number in (signal.SIGINT, *TOLD_TO_END):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as Ctrl-C is in the background, and SIGHUP under nohup
            signal.signal(number, hear)
    crashes = 0
    while True:
        start = time.monotonic()
        child = subprocess.Popen([sys.executable, "-m", "bert_jax", *arguments])
        if received:  # a signal came while the process was being started
            tell(child)
        code = child.wait()
        code = code if code >= 0 else 128 - code  # the code that a shell reports
        crashes += code != PREEMPTED
        if received or code in FINAL or crashes > restarts:
            break
        which = "another process was told to end" if code == PREEMPTED else f"restart {crashes} of {restarts}"
        print(
            f"supervisor: ended {_reason(code)} after {duration(time.monotonic() - start)}; {which}; again in "
            f"{wait_seconds:.0f} s",
            file=sys.stderr,
            flush=True,
        )
        deadline = time.monotonic() + wait_seconds
        while not received and time.monotonic() < deadline:
            time.sleep(min(0.1, wait_seconds))
        if received:
            break
    interrupted = any(number == signal.SIGINT for number, _ in received)
    return INTERRUPTED if interrupted and code not in (DONE, BAD_INPUT) else code


def _reason(code: int) -> str:
    names = {PREEMPTED: "preempted", PEER_LOST: "because another process was lost"}
    if code > 128:
        return f"by signal {code - 128}"
    return names.get(code, f"with exit code {code}")
