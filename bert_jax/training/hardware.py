"""Peak matrix rates, for the share of them that training reaches (MFU)."""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp

# Dense bfloat16 peak FLOP/s of one device, from the vendors' data sheets. Prefixes of jax's ``device_kind``.
PEAK_FLOPS = {
    "NVIDIA H200": 989e12,
    "NVIDIA H100": 989e12,
    "NVIDIA A100": 312e12,
    "Tesla V100": 125e12,
    "TPU v2": 23e12,  # per core
    "TPU v3": 61.5e12,  # per core
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5": 459e12,
    "TPU v6 lite": 918e12,
    "TPU v6e": 918e12,
}


def peak_flops(device: jax.Device) -> float:
    """Peak FLOP/s of one device; of a CPU, what a float32 matrix product of 1,024 reaches now, shared by all the
    devices that XLA cuts one CPU into."""
    for prefix, peak in PEAK_FLOPS.items():
        if device.device_kind.startswith(prefix):
            return peak
    return _measured(device) / len(jax.local_devices())


def _measured(device: jax.Device, size: int = 1024) -> float:
    x = jax.device_put(jnp.ones((size, size), jnp.float32), device)
    product = jax.jit(jnp.matmul)
    product(x, x).block_until_ready()
    times = []
    for _ in range(5):
        start = time.perf_counter()
        product(x, x).block_until_ready()
        times.append(time.perf_counter() - start)
    return 2 * size**3 / min(times)


def memory_bandwidth(device: jax.Device, size: int = 2**24) -> float:
    """Bytes a second that reading and writing ``size`` float32 numbers in place reaches now."""
    x = jax.device_put(jnp.ones(size, jnp.float32), device)
    add = jax.jit(lambda v: v + 1, donate_argnums=0)  # in place: fresh memory would measure the operating system
    times = []
    for _ in range(6):
        start = time.perf_counter()
        x = add(x).block_until_ready()
        times.append(time.perf_counter() - start)
    return 2 * 4 * size / min(times)
