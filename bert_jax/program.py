"""Small helpers for output: the command that runs this program, durations and bytes as text, and warnings."""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

Note = Callable[[str], None]  # shows a line to the user
MISSING = "–"
# How JAX for an accelerator is installed: from a registry, and with the versions of the lock file of the source tree.
_LOCKED = "in the source tree: pip install --no-deps --require-hashes -r requirements/"
INSTALL = {
    "tpu": f"pip install 'jax[tpu]' ({_LOCKED}tpu.txt)",
    "gpu": f"pip install 'jax[cuda12]' ({_LOCKED}gpu.txt)",
    "plan-gpu": f"pip install 'jax[cuda12-local]' nvidia-cuda-nvcc-cu12 ({_LOCKED}plan-gpu.txt)",
}


def program() -> str:
    """Return the command that runs this program: ``bert-jax`` if the shell finds it.

    Otherwise return the path of the script beside this Python, or ``<python> -m bert_jax``. A path below the current
    folder is relative, and a Python that the shell finds is its name alone.
    """
    if shutil.which("bert-jax"):
        return "bert-jax"
    script = Path(sys.executable).parent / "bert-jax"
    found = str(script) if script.exists() else sys.executable
    relative = os.path.relpath(found)
    path = os.path.abspath(found) if relative.startswith("..") else relative
    if script.exists():
        return path
    name = Path(found).name
    return f"{name if shutil.which(name) == found else path} -m bert_jax"


def quoted(text: str) -> str:
    """Return ``text`` as one word of a shell; in double quotes if it holds single quotes and nothing else to quote."""
    plain = "'" in text and not set(text) & set('"$`\\!')
    return f'"{text}"' if plain else shlex.quote(text)


def duration(seconds: float | None) -> str:
    """Return a duration as text: ``8 s``, ``3 m 20 s``, ``5 h 07 m``, ``2 d 03 h``, ``3 y 90 d``."""
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    whole = max(0, round(seconds))
    units = ((31_536_000, "y", 86400, "d"), (86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s"))
    for size, unit, part, small in units:
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // part:02d} {small}"
    return f"{whole} s"


def size(count: float) -> str:
    """Return a number of bytes as text: ``1.50 GiB``, ``512 B``."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= scale:
            return f"{count / scale:,.2f} {unit}"
    return f"{count:.0f} B"


def say(line: str) -> None:
    """Print a line for the user on stderr. If stderr is closed, or its terminal is gone, do nothing."""
    with contextlib.suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)


def warn(text: str) -> None:
    """Print a warning as one line on stderr, as ``say`` does."""
    say(f"warning: {text}")
