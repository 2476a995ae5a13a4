"""A process that has one side of a figure ready, and runs turns of it when asked.

It writes one JSON object a line: the facts once it is ready, then what it is asked for, the seconds of a step for each
"turn" and the rate of a matrix product for "rate". A process of its own keeps each side's threads and memory apart.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bert_jax.training.malloc import HUGE_PAGES
from tests.benchmarks.suite import figures
from tests.benchmarks.suite.figures import Figure, Side

TOP = Path(__file__).resolve().parents[3]


class SideError(Exception):
    """A side cannot be measured; the message is one line."""


class Worker:
    """The handle of the process of a side."""

    def __init__(self, figure: Figure, side: Side, device: str, turn_seconds: float):
        self.side = side
        request = {"figure": figure.as_json(), "who": side.who, "dtype": side.dtype, "turn_seconds": turn_seconds}
        environment = os.environ | {"PYTHONPATH": str(TOP), "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        if device == "cpu":
            environment |= {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "", "GLIBC_TUNABLES": HUGE_PAGES}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.suite.worker", json.dumps(request)],
            cwd=TOP,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._errors: list[str] = []
        self._readers = [threading.Thread(target=read, daemon=True) for read in (self._read, self._read_errors)]
        for reader in self._readers:
            reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self._lines.put(line)
        self._lines.put("")

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self._errors += [line.strip() for line in self._process.stderr if line.strip()]

    def answer(self, deadline: float) -> dict[str, Any]:
        """Return the next object that the process writes.

        Raises:
          SideError: the process has ended, or it wrote nothing until ``deadline`` (of ``time.monotonic``).
        """
        try:
            line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise SideError("no time left") from None
        if not line:
            self._readers[1].join(timeout=10)
            named = [line for line in self._errors if re.match(r"[\w.]+(Error|Exception|Interrupt)\b", line)]
            raise SideError([*self._errors, *named][-1][:300] if self._errors else "it ended without a word")
        return dict(json.loads(line))

    def turn(self, deadline: float) -> float:
        """Return the seconds of a step in a turn that is run now."""
        return self._asked("turn", deadline)

    def matmul_rate(self, deadline: float) -> float:
        """Return the FLOP/s of a large matrix product, measured now."""
        return self._asked("rate", deadline)

    def _asked(self, what: str, deadline: float) -> float:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the answer says why
            self._process.stdin.write(f"{what}\n")
            self._process.stdin.flush()
        return float(self.answer(deadline)[what])

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for reader in self._readers:
            reader.join(timeout=10)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            with contextlib.suppress(BrokenPipeError):
                if stream is not None:
                    stream.close()


def main() -> None:
    request = json.loads(sys.argv[1])
    figure = Figure(**request["figure"])
    rate: Callable[[str], float]
    if request["who"] == figures.OURS:
        from tests.benchmarks.suite import ours

        rate = ours.matmul_rate
        run, facts = ours.prepare(figure, request["dtype"])
    else:
        from tests.benchmarks.suite import peers

        rate = peers.matmul_rate
        run, facts = peers.prepare(figure, request["who"], request["dtype"])
    start = time.perf_counter()
    run(2)  # compiles
    facts["first_seconds"] = time.perf_counter() - start
    steps = max(1, min(500, round(request["turn_seconds"] / max(run(1), 1e-6))))
    print(json.dumps(facts), flush=True)
    for line in sys.stdin:
        what = line.strip()
        print(json.dumps({what: rate(request["dtype"]) if what == "rate" else run(steps) / steps}), flush=True)


if __name__ == "__main__":
    main()
