"""Measures time and memory of the forms of plain attention, forward and backward, over rows of 512 to 8,192 positions.

Two packed rows of 4 heads of 32, float32, a window of 64. Milliseconds are processor time of both cores together, so
that other jobs count little; the least of five turns.
"""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.models.dropout import RowRng
from bert_jax.models.kernels import plain
from bert_jax.models.masks import Visible

BATCH, HEADS, HEAD_DIM, TEXT, WINDOW, TURNS = 2, 4, 32, 300, 64, 5
DENSE = 4096  # the longest rows whose scores fit into this machine's memory at once


def measure(form: Callable[..., jax.Array], length: int, rate: float, window: int | None) -> tuple[float, float]:
    """(milliseconds, MiB of temporary arrays) of ``form`` and its gradients."""
    random = np.random.default_rng(0)
    inputs = [jnp.asarray(random.normal(size=(BATCH, length, HEADS, HEAD_DIM)), jnp.float32) for _ in range(4)]
    ids = jnp.asarray(np.tile(1 + np.arange(length) // TEXT, (BATCH, 1)), jnp.int32)

    def run(query: Any, key: Any, value: Any, gradient: Any, ids: Any) -> Any:
        seen, rng = Visible(ids, ids, window=window), RowRng.create(0, 0, jnp.arange(BATCH))
        out, backward = jax.vjp(lambda *factors: form(factors, seen, rate, rng), query, key, value)
        return out, *backward(gradient)

    program = jax.jit(run).lower(*inputs, ids).compile()
    jax.block_until_ready(program(*inputs, ids))
    seconds = []
    for _ in range(TURNS):
        begin = time.process_time()
        jax.block_until_ready(program(*inputs, ids))
        seconds.append(time.process_time() - begin)
    return 1e3 * min(seconds), program.memory_analysis().temp_size_in_bytes / 2**20


@pytest.mark.parametrize("rate", [0.0, 0.1])
@pytest.mark.parametrize("length", [512, 1024, 2048, 4096, 8192])
def test_attention(length, rate, monkeypatch):
    monkeypatch.setattr(plain, "LONG", DENSE + 1)  # where all scores are held at once otherwise ends
    for name, form, window in (
        ("dense", plain.dense, None),
        ("chunked", plain.chunked, None),
        ("local", plain.local, WINDOW),
    ):
        if form is not plain.dense or length <= DENSE:
            milliseconds, mebibytes = measure(form, length, rate, window)
            print(f"\n{name}, {length} positions, rate {rate}: {milliseconds:.1f} ms, {mebibytes:.0f} MiB", end="")
