"""What a user types to run this program, for the commands that it suggests."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path


def program() -> str:
    """``bert-jax`` where the shell finds it; else the path of the script beside this Python, or ``python -m``."""
    if shutil.which("bert-jax"):
        return "bert-jax"
    script = Path(sys.executable).parent / "bert-jax"
    path = os.path.relpath(script if script.exists() else sys.executable)
    return path if script.exists() else f"{path} -m bert_jax"
