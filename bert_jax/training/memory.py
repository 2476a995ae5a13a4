"""Refuses a config that certainly does not fit into memory, before any array is made."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import numpy as np

from bert_jax.errors import UserError
from bert_jax.program import size
from bert_jax.records import BatchSpec
from bert_jax.training.malloc import host_bytes

_STATE_BYTES = 16  # bytes for each parameter in a train step: value, gradient and two moments, in float32


def check_fits(parameters: float, batches: Mapping[str, tuple[int, BatchSpec]]) -> None:
    """Raise ``UserError`` if the train state, or the rows of one batch, need more memory than there is.

    The need is underestimated, so that only a config that cannot run is refused. The estimate assumes that the state is
    divided evenly over all devices, and that a row takes as much memory on a device as on the host. It leaves out
    activations, which ``bert-jax plan`` includes.

    Args:
      parameters: the number of the model's parameters, trained or not.
      batches: for each config key of a batch size, (the batch size over all processes, the features of a row).
    """
    devices = jax.devices()
    state = _STATE_BYTES * parameters / len(devices)
    there = device_bytes(devices[0])
    if there is not None and state > there:
        raise UserError(
            f"config.model has {parameters:,.0f} parameters: training takes at least {size(state)} on each of "
            f"{len(devices)} devices, which have {size(there)}; choose a smaller model or more devices"
        )
    for name, (rows, spec) in batches.items():
        row = sum(int(np.prod(f.shape, dtype=np.int64)) * np.dtype(f.dtype).itemsize for f in spec.values())
        needed = rows * row / jax.process_count()
        if needed > host_bytes():
            raise UserError(
                f"{name} is {rows:,}: its rows alone take {size(needed)} on this machine, which has "
                f"{size(host_bytes())}; lower it"
            )


def device_bytes(device: jax.Device) -> float | None:
    """Return how many bytes a program may use on a device, or None if that is not known."""
    if device.platform == "cpu":
        return host_bytes() / jax.local_device_count()
    return (device.memory_stats() or {}).get("bytes_limit")
