"""Products whose factors are narrower than their sums, forward and backward.

``rounded_product`` is one of float32 matrices, which reaches a CPU's bfloat16 units; ``wide_product`` is one of arrays
that are in the narrow dtype already.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

_BLOCK = 32  # rows that a transposition moves together

_Pair = tuple[jax.Array, jax.Array]


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def rounded_product(x: jax.Array, y: jax.Array, dtype: Any, by_rows: bool = False) -> jax.Array:
    """Return the product [N, M] float32 of x [N, K] and y [K, M], whose factors are rounded to ``dtype``.

    The factors of the gradient's products are rounded too. Sums are accumulated in float32 and not rounded.

    Args:
      by_rows: ``y`` is given as [M, K].
    """
    x, y = x.astype(dtype), y.astype(dtype)
    return _wide(x, y, by_rows)


def _forward(x: jax.Array, y: jax.Array, dtype: Any, by_rows: bool) -> tuple[jax.Array, _Pair]:
    return rounded_product(x, y, dtype, by_rows), (x, y)


def _backward(dtype: Any, by_rows: bool, factors: _Pair, gradient: jax.Array) -> _Pair:
    x, y = (factor.astype(dtype) for factor in factors)
    gradient = gradient.astype(dtype)
    of_x = _wide(gradient, y, not by_rows)
    of_y = _down_columns(gradient, x) if by_rows else _down_columns(x, gradient)
    return of_x.astype(factors[0].dtype), of_y.astype(factors[1].dtype)


rounded_product.defvjp(_forward, _backward)


def _wide(x: jax.Array, y: jax.Array, by_rows: bool = False) -> jax.Array:
    # A transposition of y that is not a part of the product would make XLA compute the product in float32.
    contracted = ((1,), (1 if by_rows else 0,))
    return jax.lax.dot_general(x, y, (contracted, ((), ())), preferred_element_type=jnp.float32)


def _down_columns(x: jax.Array, y: jax.Array) -> jax.Array:
    """Return the product [K, M] float32 of x [N, K], transposed, and y [N, M].

    XLA has no fast program that reads a left factor down its columns, so it is transposed in memory. A plain
    transposition would be merged into the product.
    """
    rows, columns = x.shape
    if rows % _BLOCK:
        return jnp.matmul(x.T.astype(jnp.float32), y.astype(jnp.float32))
    blocks = jnp.moveaxis(x.reshape(rows // _BLOCK, _BLOCK, columns), -1, 0)
    return _wide(jax.lax.optimization_barrier(blocks).reshape(columns, rows), y)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def wide_product(x: jax.Array, y: jax.Array, dtype: Any, product: str) -> jax.Array:
    """Return the ``product`` of x and y (as ``jnp.einsum`` writes it), accumulated in ``dtype``.

    The gradients are computed in the dtype of x and y, because jax's own rule would use ``dtype``, which is slow.
    """
    return jnp.einsum(product, x, y, preferred_element_type=dtype)


def _wide_forward(x: jax.Array, y: jax.Array, dtype: Any, product: str) -> tuple[jax.Array, _Pair]:
    return wide_product(x, y, dtype, product), (x, y)


def _wide_backward(dtype: Any, product: str, factors: _Pair, gradient: jax.Array) -> _Pair:
    del dtype
    _, backward = jax.vjp(functools.partial(jnp.einsum, product), *factors)
    return backward(gradient.astype(factors[0].dtype))  # type: ignore[no-any-return]


wide_product.defvjp(_wide_forward, _wide_backward)
