"""Measures time and error of the attention kernel of GPUs, forward and backward, beside plain attention and cuDNN.

    python -m tests.benchmarks.gpu_attention

bfloat16, heads of 64, on one GPU. Each shape has an error of the output and of the gradients of query, key and
value: the norm of the difference from plain attention over the norm. Rounding gives 3e-3, a wrong dropout bit or a
wrong block far more. cuDNN computes rows of one sequence without dropout and without a window.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.models.dropout import RowRng
from bert_jax.models.kernels import cudnn, flash
from bert_jax.models.kernels.base import Case
from bert_jax.models.kernels.plain import SITE, plain
from bert_jax.models.masks import Visible

# Rows, positions, heads, sequences of a row, dropout, window.
SHAPES = (
    (256, 128, 12, 1, 0.1, None),
    (16, 512, 16, 2, 0.1, None),
    (16, 1024, 12, 1, 0.0, None),
    (16, 1024, 12, 1, 0.0, 64),
    (2, 8192, 12, 1, 0.0, None),
    (2, 8192, 12, 1, 0.0, 64),
    (2, 8192, 12, 16, 0.0, None),
)
HEAD_DIM, STEPS, TURNS = 64, 10, 5


def measured(attend: Callable[..., jax.Array], factors: Any, gradient: jax.Array) -> tuple[list[np.ndarray], float]:
    """Return the output and the gradients, and the milliseconds of both passes: the median turn."""

    @jax.jit
    def run(factors: Any, gradient: jax.Array) -> Any:
        out, backward = jax.vjp(attend, factors)
        return out, *backward(gradient)[0]

    found = [np.asarray(x, np.float32) for x in run(factors, gradient)]
    times = []
    for _ in range(TURNS):
        start = time.perf_counter()
        for _ in range(STEPS):
            out = run(factors, gradient)
        jax.block_until_ready(out)
        times.append(1e3 * (time.perf_counter() - start) / STEPS)
    return found, statistics.median(times)


def main() -> None:
    print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}; ms forward and backward")
    heading = "rows x positions x heads | sequences | dropout | window | plain | flash | cudnn"
    print(f"| {heading} | error of output, dQ, dK, dV |")
    print("|---|---|---|---|---|---|---|---|")
    for rows, length, heads, sequences, rate, window in SHAPES:
        random, shape = np.random.default_rng(0), (rows, length, heads, HEAD_DIM)
        *factors, gradient = (jnp.asarray(random.normal(size=shape), jnp.bfloat16) for _ in range(4))
        ids = jnp.asarray(np.broadcast_to(1 + np.arange(length) * sequences // length, (rows, length)), jnp.int32)
        visible = Visible(jnp.ones_like(ids), ids if sequences > 1 else None, window=window)
        rng = RowRng.create(0, 0, jnp.arange(rows))
        keys = (rng.site(SITE).row_keys(), jnp.zeros(1, jnp.int32))
        case = Case("gpu", length, heads, HEAD_DIM, "bfloat16", rate, sequences > 1, window)
        ways: dict[str, Callable[..., jax.Array]] = {
            "plain": functools.partial(plain, visible=visible, rate=rate, rng=rng),
            "flash": functools.partial(flash.attend, ids=visible.ids(), dropout_keys=keys, case=case),
        }
        if sequences == 1 and not rate and not window:
            ways["cudnn"] = functools.partial(cudnn.attend, ids=visible.ids(), dropout_keys=keys, case=case)
        found = {name: measured(way, tuple(factors), gradient) for name, way in ways.items()}
        pairs = zip(found["flash"][0], found["plain"][0], strict=True)
        errors = ", ".join(f"{np.linalg.norm(one - other) / np.linalg.norm(other):.0e}" for one, other in pairs)
        times = [f"{found[name][1]:.2f}" if name in found else "" for name in ("plain", "flash", "cudnn")]
        cells = (f"{rows} x {length:,} x {heads}", sequences, rate, window or "", *times, errors)
        print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()
