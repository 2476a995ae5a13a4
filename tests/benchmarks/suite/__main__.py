"""Measures whole train steps, ours beside PyTorch and Hugging Face, in one run on one machine.

    python -m tests.benchmarks.suite --device=cpu [--turns=7] [--output=runs/bench-cpu]

Every side of a figure does the same work in a process of its own. A turn is some seconds of steps; the table has the
median turn, the least and the most. The turns of all sides alternate, so that what else runs on the machine slows all
alike; on a CPU whose memory does not hold all sides, one follows the other. Nothing is downloaded. A side whose package
is missing, that fails, or for which --minutes do not suffice is left out with a line.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import importlib.util
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.benchmarks.suite import results
from tests.benchmarks.suite.figures import FIGURES, OURS, SIDES, TINY, Figure, Side
from tests.benchmarks.suite.results import FigureResult, SideResult
from tests.benchmarks.suite.worker import SideError, Worker

SIDE_BYTES = 4e9  # of host memory that a side on a CPU may take


def main(argv: list[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    if arguments.turns < 1 or not arguments.minutes > 0 or not arguments.turn_seconds > 0:
        return _error("--turns, --minutes and --turn_seconds are numbers above 0")
    deadline = time.monotonic() + 60 * arguments.minutes
    sides = SIDES[arguments.device]
    absent = {side.name: why for side in sides if (why := _absent(side, None if arguments.tiny else arguments.device))}
    for name, why in absent.items():
        _say(f"{name} is left out: {why}")
    if all(side.name in absent for side in sides if side.who == OURS):
        return _error(f"nothing of ours can be measured for --device={arguments.device}; --tiny runs on any device")
    found: list[FigureResult] = []
    for figure in TINY if arguments.tiny else FIGURES[arguments.device]:
        _say(f"{figure.name}: {figure.described()}")
        found.append(_measure(figure, arguments, absent, deadline))
    machine = _machine(found)
    output = Path(arguments.output or f"runs/bench-{arguments.device}")
    output.mkdir(parents=True, exist_ok=True)
    (output / "results.json").write_text(json.dumps(results.as_json(machine, found), indent=1) + "\n")
    (output / "table.md").write_text(results.table(machine, found))
    (output / "picture.svg").write_text(results.picture(machine, found))
    print(results.table(machine, found))
    _say(f"written: {output}/results.json, table.md, picture.svg")
    return 0 if any(result.best_of_ours() for result in found) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.suite", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--device", choices=sorted(FIGURES), default="cpu")
    parser.add_argument("--turns", type=int, default=5, help="turns of each side (default: 5)")
    parser.add_argument("--turn_seconds", type=float, default=3.0, help="about how long a turn is (default: 3)")
    parser.add_argument("--minutes", type=float, default=30.0, help="time for everything (default: 30)")
    parser.add_argument("--tiny", action="store_true", help="tiny models on any device, to see that all of it runs")
    parser.add_argument(
        "--output", help="folder for results.json, table.md and picture.svg (default: runs/bench-DEVICE)"
    )
    return parser


def _measure(figure: Figure, arguments: argparse.Namespace, absent: dict[str, str], deadline: float) -> FigureResult:
    """Return a figure, with all sides that could be measured before ``deadline``, except those in ``absent``."""
    device = arguments.device
    entries = {
        side: SideResult(side.name, side.who, side.dtype, left_out=absent.get(side.name, "")) for side in SIDES[device]
    }
    todo = [side for side, entry in entries.items() if not entry.left_out]
    alternating = device != "cpu" or arguments.tiny or _free_memory() > SIDE_BYTES * len(todo)
    for group in [todo] if alternating else [[side] for side in todo]:
        workers: list[Worker] = []
        try:
            for side in group:
                workers.append(Worker(figure, side, device, 0.01 if arguments.tiny else arguments.turn_seconds))
                if device == "cpu":  # one after the other; elsewhere all compile at once
                    _ready(workers[-1], entries[side], deadline)
            for worker in () if device == "cpu" else workers:
                _ready(worker, entries[worker.side], deadline)
            for worker in workers:
                _rate(worker, entries[worker.side], deadline)
            for _ in range(arguments.turns):
                for worker in workers:
                    _turn(worker, entries[worker.side], deadline)
        finally:
            for worker in workers:
                worker.end()
    for entry in entries.values():
        if entry.left_out and entry.name not in absent:
            _say(f"  {entry.name} is left out: {entry.left_out}")
    return FigureResult(figure, alternating, list(entries.values()))


def _ready(worker: Worker, entry: SideResult, deadline: float) -> None:
    try:
        entry.facts = worker.answer(deadline)
        _say(f"  {entry.name} is ready, after {entry.facts['first_seconds']:.0f} s of compiling")
    except SideError as error:
        entry.left_out = str(error)


def _rate(worker: Worker, entry: SideResult, deadline: float) -> None:
    """Measure the rate of a matrix product, while no other side works."""
    if entry.left_out:
        return
    try:
        entry.facts["matmul"] = {entry.dtype: worker.matmul_rate(deadline)}
    except SideError as error:
        entry.left_out, entry.facts = str(error), {}


def _turn(worker: Worker, entry: SideResult, deadline: float) -> None:
    """Run a turn, unless the side has failed. Where time runs out, the turns made before count."""
    if entry.left_out or not entry.facts:
        return
    try:
        entry.seconds.append(worker.turn(deadline))
    except SideError as error:
        entry.left_out = "" if entry.seconds else str(error)
        entry.facts = entry.facts if entry.seconds else {}


def _absent(side: Side, device: str | None) -> str:
    """Return why a side cannot be measured: a package is missing, or it finds no ``device``. "" if it can."""
    for name in side.packages:
        if importlib.util.find_spec(name) is None:
            return f"the package {name} is not installed"
    if device in (None, "cpu"):
        return ""
    library = "jax" if side.who == OURS else "torch"
    found = _platform(library)
    return "" if found == device else f"{library} finds no {device} ({found})"


@functools.cache
def _platform(library: str) -> str:
    """Return the kind of device that a library uses, such as gpu; asked in a process, to leave the device free."""
    program = {
        "jax": "import jax; print(jax.default_backend())",
        "torch": "import torch; print('gpu' if torch.cuda.is_available() else 'cpu')",
    }[library]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    lines = (done.stdout if done.returncode == 0 else done.stderr).split("\n")
    return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "unknown")


def _machine(found: list[FigureResult]) -> dict[str, Any]:
    facts = [side.facts for result in found for side in result.sides if side.facts]
    versions = dict.fromkeys(part for fact in facts for part in fact.get("version", "").split(", ") if part)
    return {
        "device": ", ".join(dict.fromkeys(fact["device"] for fact in facts)),
        "cores": f"{len(os.sched_getaffinity(0))} cores of {_processor()}",
        "versions": ", ".join([f"Python {platform.python_version()}", *versions]),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _free_memory() -> float:
    """Return the bytes of memory that are free; 0 if unknown."""
    path = Path("/proc/meminfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable")), 0.0)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _error(line: str) -> int:
    _say(f"error: {line}")
    return 2


if __name__ == "__main__":
    sys.exit(main())
