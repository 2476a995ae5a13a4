"""Rows, inputs and comparisons for the tests of attention kernels, which are interpreted on a CPU."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.models.dropout import RowRng
from bert_jax.models.kernels.base import Case, Kernel
from bert_jax.models.kernels.plain import SITE
from bert_jax.models.masks import Visible

LENGTH, HEADS, WIDTH = 384, 2, 64  # several chunks of queries and blocks of keys


def arrays(batch: int, dtype: Any = jnp.float32, heads: int = HEADS, width: int = WIDTH) -> list[jax.Array]:
    """Query, key, value and the gradient of the output."""
    random = np.random.default_rng(batch + heads)
    return [jnp.asarray(random.normal(size=(batch, LENGTH, heads, width)), dtype) for _ in range(4)]


def padded(batch: int, **rules: Any) -> Visible:
    lengths = np.linspace(LENGTH, LENGTH // 2 + 1, batch).astype(int)
    return Visible(jnp.asarray(np.arange(LENGTH) < lengths[:, None], jnp.int32), **rules)


def packed(batch: int, **rules: Any) -> Visible:
    """Rows of three sequences and, but for the first row, padding."""
    place = np.arange(LENGTH)[None]
    ends = np.arange(batch)[:, None] * 7
    ids = 1 + (place >= 60 + ends).astype(int) + (place >= 190 - ends)
    ids = np.where((place >= 240) & (ends > 0), 0, ids)
    return Visible(jnp.asarray(ids > 0, jnp.int32), jnp.asarray(ids, jnp.int32), **rules)


def real(visible: Visible) -> jax.Array:
    """[B, L, 1, 1] 1 where an output has a meaning."""
    return (visible.ids()[1] > 0)[:, :, None, None].astype(jnp.float32)


def directly(kernel: Kernel, visible: Visible, rate: float = 0.0, rng: RowRng | None = None) -> Any:
    """The kernel as a function of query, key and value."""
    keys = jnp.zeros(len(visible.attention_mask), jnp.uint32) if rng is None else rng.site(SITE).row_keys()

    def attend(q: Any, k: Any, v: Any) -> jax.Array:
        sizes, packed = (q.shape[1], q.shape[2], q.shape[3], q.dtype.name), visible.sequence_ids is not None
        case = Case("cpu", *sizes, rate, packed, visible.window, visible.causal)
        return kernel.attend((q, k, v), visible.ids(), (keys, jnp.zeros(1, jnp.int32)), case)

    return attend


def results(function: Any, inputs: list[jax.Array], visible: Visible) -> list[jax.Array]:
    """The output where it has a meaning, and the gradients of query, key and value."""
    *inputs, gradient = inputs
    mask = real(visible).astype(gradient.dtype)

    @jax.jit
    def computed(inputs: list[jax.Array], gradient: jax.Array) -> list[jax.Array]:
        out, backward = jax.vjp(function, *inputs)
        return [out * mask, *backward(gradient * mask)]

    return computed(inputs, gradient)


def assert_close(found: list[jax.Array], expected: list[jax.Array], tolerance: float) -> None:
    for one, other in zip(found, expected, strict=True):
        one, other = np.asarray(one, np.float32), np.asarray(other, np.float32)
        assert np.abs(one - other).max() <= tolerance * np.abs(other).max()
