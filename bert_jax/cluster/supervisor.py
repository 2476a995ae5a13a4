"""``--restarts=N``: a process that ends by a crash, or because another was lost, is started again."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType

from bert_jax.cluster.exit_codes import FINAL, PEER_LOST, PREEMPTED
from bert_jax.program import duration

WAIT_SECONDS = 5.0  # before a restart: until the last process of the job before is gone


def supervise(arguments: Sequence[str], restarts: int, wait_seconds: float = WAIT_SECONDS) -> int:
    """Run ``bert-jax`` with ``arguments`` until it is done, or has been started ``restarts`` times more after crashes.

    SIGTERM and SIGINT are passed on, and end the supervision: whoever sends them starts the whole again, or does not.
    Where another process of the job was told to go, this one has saved and left too: it is started again, uncounted.

    Returns:
      The exit code of the last process.
    """
    told: list[int] = []
    passed: list[int] = []
    child: subprocess.Popen[bytes] | None = None

    def pass_on(number: int, frame: FrameType | None) -> None:
        told.append(number)
        if child is not None and child.returncode is None:
            passed.append(number)
            with contextlib.suppress(ProcessLookupError):
                child.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    crashes = 0
    while True:
        start = time.monotonic()
        child = subprocess.Popen([sys.executable, "-m", "bert_jax", *arguments])
        if told and not passed:  # while it was being started
            pass_on(told[-1], None)
        code = child.wait()
        code = code if code >= 0 else 128 - code  # as a shell has it
        crashes += code != PREEMPTED
        if told or code in FINAL or crashes > restarts:
            break
        which = "another of its processes was told to go" if code == PREEMPTED else f"restart {crashes} of {restarts}"
        print(
            f"supervisor: ended {_reason(code)} after {duration(time.monotonic() - start)}; {which}; again in "
            f"{wait_seconds:.0f} s",
            file=sys.stderr,
            flush=True,
        )
        time.sleep(wait_seconds)
        if told:
            break
    return code


def _reason(code: int) -> str:
    names = {PREEMPTED: "preempted", PEER_LOST: "because another process was lost"}
    if code > 128:
        return f"by signal {code - 128}"
    return names.get(code, f"with exit code {code}")
