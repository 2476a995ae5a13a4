"""Chooses the CPU where libtpu is installed and no TPU is there: each command would begin with libtpu's errors."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from pathlib import Path

DEVICES = ("accel[0-9]*", "vfio/[0-9]*")  # the files of /dev through which a program reaches a TPU


def choose_cpu(dev: Path = Path("/dev")) -> None:
    """Set ``JAX_PLATFORMS=cpu`` if libtpu is the only plug-in of jax and nothing says that this machine has a TPU.

    Call this before jax is imported. Nothing is set if the user has chosen a platform, or if there is a sign of a
    TPU: device files, or variables that TPU VMs, GKE and Colab set.
    """
    asked = any(name.startswith(("JAX_PLATFORM", "TPU_", "COLAB_TPU", "MEGASCALE_")) for name in os.environ)
    if asked or importlib.util.find_spec("libtpu") is None:
        return
    if importlib.util.find_spec("jax_plugins") or importlib.metadata.entry_points(group="jax_plugins"):
        return  # of a GPU, which jax then finds
    if not any(next(dev.glob(pattern), None) for pattern in DEVICES):
        os.environ["JAX_PLATFORMS"] = "cpu"
