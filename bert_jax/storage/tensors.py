"""Writes safetensors files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import safetensors
from safetensors.numpy import save_file

from bert_jax.errors import UserError
from bert_jax.storage import write_errors


def save_tensors(
    path: Path, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str], output: str | os.PathLike[str]
) -> None:
    """Write ``path``. Raises ``UserError``, which names ``output``, if it cannot be written."""
    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(dict(tensors), path, dict(metadata))
    except safetensors.SafetensorError as error:  # raised instead of OSError if the disk is full
        raise UserError(f"cannot write {output}: {error}; {write_errors.write_advice(error)}") from error
    path.chmod(mode)  # safetensors makes files that only the owner can read
