"""Functions with a gradient that is written out: autodiff would sum in bfloat16, scatter, or keep wide copies.

Gathered vectors, rows of tables, broadcasts, gated activations and, on GPUs, layer norm.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from bert_jax.models import fixed_order
from bert_jax.models.placement import on_each_device, placement, platform

Activation = Callable[[jax.Array], jax.Array]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def gated(activation: Activation, x: jax.Array) -> jax.Array:
    """Return the activation of the first half of x [B, L, 2, M], times the second half, [B, L, M].

    The backward pass reads x alone and computes both factors again.
    """
    return activation(x[:, :, 0]) * x[:, :, 1]


def _gated(activation: Activation, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return gated(activation, x), x


def _gated_gradient(activation: Activation, x: jax.Array, gradient: jax.Array) -> tuple[jax.Array]:
    opened, backward = jax.vjp(activation, x[:, :, 0])
    return (jnp.stack([*backward(gradient * x[:, :, 1]), gradient * opened], axis=2),)


gated.defvjp(_gated, _gated_gradient)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def look_up(table: jax.Array, ids: jax.Array, dtype: Any) -> jax.Array:
    """Return the rows [..., E] of table [V, E] at ids [...], in ``dtype``.

    The gradient is summed in float32 or wider, and cast to the dtype of the table once.
    """
    return jnp.take(table, ids, axis=0).astype(dtype)


def _look_up(table: jax.Array, ids: jax.Array, dtype: Any) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return look_up(table, ids, dtype), (table, ids)


def _added_up(dtype: Any, looked_up: tuple[jax.Array, jax.Array], gradient: jax.Array) -> tuple[jax.Array, None]:
    del dtype
    table, ids = looked_up
    wide = jnp.promote_types(table.dtype, jnp.float32)

    def scattered(gradient: jax.Array) -> jax.Array:
        rows = jax.ShapeDtypeStruct(table.shape, wide)
        return jax.linear_transpose(lambda t: jnp.take(t, ids, axis=0), rows)(gradient.astype(wide))[0]  # type: ignore[no-any-return]

    def multiplied(gradient: jax.Array) -> jax.Array:
        chosen = jax.nn.one_hot(ids.reshape(-1), table.shape[0], dtype=gradient.dtype)
        return jnp.einsum("nv,ne->ve", chosen, gradient.reshape(ids.size, -1), preferred_element_type=wide)

    def in_order(ids: jax.Array, gradient: jax.Array) -> jax.Array:
        return fixed_order.rows_added(ids, gradient, table.shape[0], wide)

    if platform() == "gpu":
        return _sum_of_rows(in_order, ids, gradient).astype(table.dtype), None
    # A TPU adds rows one after another, but multiplies bfloat16 fast, and adds the products in float32.
    on_tpu = multiplied if gradient.dtype == jnp.bfloat16 else scattered
    return jax.lax.platform_dependent(gradient, tpu=on_tpu, default=scattered).astype(table.dtype), None


def _sum_of_rows(local: Callable[..., jax.Array], *arrays: jax.Array) -> jax.Array:
    """Return the sum over devices of ``local``, which each computes of its rows of ``arrays`` [B, ...]."""
    place = placement.get()
    if place is None or arrays[0].shape[0] % math.prod(place.mesh.shape[axis] for axis in place.axes("batch")):
        return local(*arrays)
    rows = tuple(axis for axis in place.axes("batch") if axis not in jax.sharding.get_abstract_mesh().manual_axes)

    def summed(*arrays: jax.Array) -> jax.Array:
        return jax.lax.psum(local(*arrays), rows) if rows else local(*arrays)

    return on_each_device(place, summed, arrays, tuple(place.spec("batch") for _ in arrays), PartitionSpec())  # type: ignore[no-any-return]


look_up.defvjp(_look_up, _added_up)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def spread(x: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """Return ``x`` broadcast to ``shape``, in ``dtype``. The axes of ``x`` are the last axes of ``shape``.

    The gradient is summed in float32 or wider; a sum of many bfloat16 values in bfloat16 stops growing.
    """
    return jax.lax.broadcast_in_dim(x.astype(dtype), shape, range(len(shape) - x.ndim, len(shape)))


def _spread(x: jax.Array, shape: tuple[int, ...], dtype: Any) -> tuple[jax.Array, jax.Array]:
    return spread(x, shape, dtype), x


def _summed(shape: tuple[int, ...], dtype: Any, x: jax.Array, gradient: jax.Array) -> tuple[jax.Array]:
    del dtype
    wide, rows = jnp.promote_types(x.dtype, jnp.float32), range(len(shape) - x.ndim)

    def added(gradient: jax.Array) -> jax.Array:
        return jnp.sum(gradient.astype(wide), axis=rows)

    def rounded(gradient: jax.Array) -> jax.Array:
        # Without this, XLA sums the gradient as it was before it was rounded, and writes it in both precisions.
        bits = jnp.finfo(gradient.dtype)
        gradient = jax.lax.reduce_precision(gradient, bits.nexp, bits.nmant)
        if x.ndim == 1:
            return added(gradient)
        # For a sum over rows alone, XLA stores all activations with the rows last, and copies them back and forth; the
        # product with one row of ones it turns into that sum again.
        flat = gradient.reshape(-1, x.size)
        ones = jnp.ones((8, len(flat)), flat.dtype)
        return jnp.matmul(ones, flat, preferred_element_type=wide)[0].reshape(x.shape)

    on_gpu = added if gradient.dtype == wide else rounded
    return (jax.lax.platform_dependent(gradient, cuda=on_gpu, default=added).astype(x.dtype),)


spread.defvjp(_spread, _summed)


@jax.custom_vjp
def gather(x: jax.Array, positions: jax.Array) -> jax.Array:
    """Return the vectors [B, P, D] of x [B, L, D] at positions [B, P]."""
    return jnp.take_along_axis(x, positions[:, :, None], axis=1)


def _gather(x: jax.Array, positions: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return gather(x, positions), (x, positions)


def _put_back(gathered: tuple[jax.Array, jax.Array], gradient: jax.Array) -> tuple[jax.Array, None]:
    x, positions = gathered

    def scattered(gradient: jax.Array) -> jax.Array:
        transposed = jax.linear_transpose(lambda x: jnp.take_along_axis(x, positions[:, :, None], axis=1), x)
        return transposed(gradient)[0]  # type: ignore[no-any-return]

    def multiplied(gradient: jax.Array) -> jax.Array:
        return fixed_order.vectors_added(positions, gradient, x.shape[1])

    # A TPU scatters row by row; on a GPU, dropout would share the zeros to which a scatter adds, and read them.
    return jax.lax.platform_dependent(gradient, cuda=multiplied, tpu=multiplied, default=scattered), None


gather.defvjp(_gather, _put_back)


_Dtypes = tuple[Any, Any]  # of the computation, of the result


def normalised(x: jax.Array, scale: jax.Array, bias: jax.Array | None, eps: float, dtypes: _Dtypes) -> jax.Array:
    x = x.astype(dtypes[0])
    x = x - jnp.mean(x, axis=-1, keepdims=True)
    x = x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + eps)
    return _scaled(x, scale, bias).astype(dtypes[1])


def _scaled(x: jax.Array, scale: jax.Array, bias: jax.Array | None) -> jax.Array:
    widen = (1,) * (x.ndim - 1)
    x = x * scale.reshape(*widen, -1)
    return x if bias is None else x + bias.reshape(*widen, -1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def normalised_on_gpu(x: jax.Array, scale: jax.Array, bias: jax.Array | None, eps: float, dtypes: _Dtypes) -> jax.Array:
    """Return the result of ``normalised``; the gradient reads x, means and deviations, and no wide copy of x."""
    return normalised(x, scale, bias, eps, dtypes)


def _with_statistics(x: jax.Array, scale: jax.Array, bias: jax.Array | None, eps: float, dtypes: _Dtypes) -> Any:
    wide = x.astype(dtypes[0])
    # Both sums in one pass over x; the variance from deviations would take a second.
    mean, of_squares = (jnp.mean(part, axis=-1, keepdims=True) for part in (wide, jnp.square(wide)))
    inverse = jax.lax.rsqrt(jnp.maximum(of_squares - jnp.square(mean), 0.0) + eps)
    return _scaled((wide - mean) * inverse, scale, bias).astype(dtypes[1]), (x, mean, inverse, scale, bias)


def _normalised_gradient(eps: float, dtypes: _Dtypes, saved: Any, gradient: jax.Array) -> Any:
    x, mean, inverse, scale, bias = saved
    # Without this barrier, XLA joins their computation to this one, and writes x in float32 for the two.
    mean, inverse = jax.lax.optimization_barrier((mean, inverse))
    gradient, rows = gradient.astype(dtypes[0]), range(x.ndim - 1)
    normal = (x.astype(dtypes[0]) - mean) * inverse
    scaled = gradient * scale.reshape(*(1,) * len(rows), -1)
    along = [jnp.mean(part, axis=-1, keepdims=True) for part in (scaled, scaled * normal)]
    to_x = inverse * (scaled - along[0] - normal * along[1])
    to_bias = None if bias is None else jnp.sum(gradient, axis=rows).astype(bias.dtype)
    return to_x.astype(x.dtype), jnp.sum(gradient * normal, axis=rows).astype(scale.dtype), to_bias


normalised_on_gpu.defvjp(_with_statistics, _normalised_gradient)
