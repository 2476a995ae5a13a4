"""Sums of gradients in a fixed order, for GPUs: a scatter adds there with atomics, in another order in every run."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

_BLOCK = 128  # sorted rows of gradients that one product adds up
_SMALL = 1024  # the most rows of a table for which a product with one-hot rows costs less than sorting


def rows_added(ids: jax.Array, gradient: jax.Array, size: int, dtype: Any) -> jax.Array:
    """Return [size, E]: row i is the sum, in ``dtype``, of the rows of gradient [..., E] whose id, in ids [...], is i.

    Gradients are sorted by id, and each block of them is multiplied with the matrix that says which of its ids are
    equal. The sums of an id that goes on in later blocks are added up by a second product.
    """
    ids = ids.reshape(-1).astype(jnp.int32)
    gradient = gradient.reshape(len(ids), -1)
    if size <= _SMALL:
        return _product(_equal(jnp.arange(size), ids), gradient, dtype)
    ids = jnp.pad(ids, (0, -len(ids) % _BLOCK), constant_values=size)  # no row
    count, index = len(ids), jnp.arange(len(ids), dtype=jnp.int32)
    ids, order = jax.lax.sort((ids, index), num_keys=1, is_stable=True)
    blocks = ids.reshape(-1, _BLOCK)
    rows = jnp.take(gradient, order, axis=0, mode="clip").reshape(*blocks.shape, -1)
    sums = _product(_equal(blocks, blocks), rows, dtype)  # [blocks, _BLOCK, E]: for each row, the sum of its id
    first, last, number = blocks[:, 0], blocks[:, -1], jnp.arange(len(blocks))
    goes_on = _equal(last, first) & (number[:, None] < number[None])
    later = _product(goes_on, sums[:, 0], dtype)  # [blocks, E]: for the last id of each block, its sum in later blocks
    is_first = ids != jnp.concatenate([jnp.full(1, -1, jnp.int32), ids[:-1]])
    target = jnp.where(is_first, ids, size + index)
    place = jnp.full(size, count, jnp.int32).at[target].set(index, mode="drop", unique_indices=True)
    block = jnp.minimum(place, count - 1) // _BLOCK  # of the first row of each id
    is_last = (last[block] == jnp.arange(size)) & (place < count)
    found = jnp.take(sums.reshape(count, -1), place, axis=0, mode="fill", fill_value=0)
    return found + jnp.where(is_last[:, None], later[block], 0)


def vectors_added(positions: jax.Array, gradient: jax.Array, length: int) -> jax.Array:
    """Return [B, length, D]: in each row, the sums of the vectors of gradient [B, P, D] by positions [B, P]."""
    return _product(_equal(jnp.arange(length)[None], positions), gradient, gradient.dtype)


def _equal(left: jax.Array, right: jax.Array) -> jax.Array:
    """Return whether left [..., N] and right [..., M] are equal, [..., N, M]."""
    return left[..., :, None] == right[..., None, :]


def _product(chosen: jax.Array, rows: jax.Array, dtype: Any) -> jax.Array:
    """Return chosen [..., N, M], which is 0 or 1, times rows [..., M, E], added up in ``dtype``."""
    return jnp.matmul(
        chosen.astype(rows.dtype), rows, precision=jax.lax.Precision.HIGHEST, preferred_element_type=dtype
    )
