"""The peak rates of a device that is present, from the table in ``chips`` or measured; MFU is a share of a peak rate.

``topologies.chip`` gives the rates of a machine that is planned, from the same table.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp

from bert_jax.planning import chips


def peak_flops(device: jax.Device, dtype: str = "float32") -> float:
    """Return the highest FLOP/s of matrix products of ``dtype`` on one device.

    For a listed chip it is the figure of the data sheet (see ``chips``). For any other device it is measured now; if
    XLA divides one CPU into several devices, each gets an equal part of the result. float64 has the figure of float32.
    """
    if chip := chips.of_device(device.device_kind):
        return chip.product_flops(dtype)
    rate = matmul_rate(device, "bfloat16" if dtype == "bfloat16" else "float32")
    return rate / (len(jax.local_devices()) if device.platform == "cpu" else 1)


def peak_of_all_devices(dtype: str, note: Callable[[str], None]) -> float:
    """Return the highest FLOP/s of matrix products of ``dtype`` on all devices together.

    ``note`` is told if the devices are CPUs and ``dtype`` is slow on them.
    """
    device = jax.devices()[0]
    if device.platform == "cpu" and dtype == "bfloat16":
        narrow, wide = (matmul_rate(device, name) for name in ("bfloat16", "float32"))
        if narrow <= wide:
            note(
                f"this CPU has no fast bfloat16 products ({narrow / 1e9:,.0f} GFLOP/s, in float32 {wide / 1e9:,.0f}): "
                "config.model.dtype=float32 is faster here, and more exact"
            )
    return peak_flops(device, dtype) * len(jax.devices())


def matmul_rate(device: jax.Device, dtype: str = "float32") -> float:
    """Return the FLOP/s of a large product of ``dtype`` with a float32 result, measured now: the best of six."""
    size = 1024 if device.platform == "cpu" else 8192
    x = jax.device_put(jax.random.normal(jax.random.key(0), (size, size), dtype), device)
    product = jax.jit(lambda a: jnp.matmul(a, a, preferred_element_type=jnp.float32))
    return 2 * size**3 / _best_seconds(product, x)


def _best_seconds(program: Callable[[jax.Array], jax.Array], x: jax.Array) -> float:
    """Return the seconds of the fastest of six calls. If a call has used ``x`` up, the next call gets its result."""
    times = []
    for _ in range(6):
        start = time.perf_counter()
        result = program(x).block_until_ready()
        times.append(time.perf_counter() - start)
        x = result if x.is_deleted() else x
    return min(times)


def memory_bandwidth(device: jax.Device) -> float:
    """Return the bytes per second measured now when 2**24 float32 numbers are read and written in place."""
    size = 2**24
    x = jax.device_put(jnp.ones(size, jnp.float32), device)
    add = jax.jit(lambda v: v + 1, donate_argnums=0)  # in place: fresh memory would measure the operating system
    return 2 * 4 * size / _best_seconds(add, x)


def elementwise_rates(device: jax.Device, size: int = 2**21) -> tuple[float, float]:
    """Return (operations, transcendental functions) on single elements per second, measured now on ``size`` numbers.

    The operations make a hash, as in dropout; the functions are erf and exp, as in GELU and softmax.
    """

    def hashed(x: jax.Array) -> jax.Array:
        for _ in range(8):
            x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
        return x

    def curved(x: jax.Array) -> jax.Array:
        for _ in range(2):
            x = jnp.exp(jax.lax.erf(x))
        return x

    numbers, points = jnp.arange(size, dtype=jnp.uint32), jnp.linspace(-4.0, 4.0, size)
    hashing = _best_seconds(jax.jit(hashed, donate_argnums=0), jax.device_put(numbers, device))
    curving = _best_seconds(jax.jit(curved, donate_argnums=0), jax.device_put(points, device))
    return 8 * 3 * size / hashing, 2 * 2 * size / curving
