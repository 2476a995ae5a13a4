"""Attention by jax alone, which every device runs and the partitioner divides over rows and heads.

There are three forms with the same result but for rounding, dropout included; ``kernels.choice.form_of`` chooses.
``dense`` holds the scores of all queries and keys. ``chunked`` holds those of some queries at a time and computes them
again in the backward pass. ``local`` computes only those near the diagonal, for layers with a window.
"""

from __future__ import annotations

import functools
import math
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from bert_jax.models.dropout import RowRng, dropout
from bert_jax.models.kernels.choice import LONG, block_of, form_of
from bert_jax.models.kernels.row_attention import OUTPUT, Factors
from bert_jax.models.masks import Visible, bias, bias_between

SCORES = "...qhd,...khd->...hqk"
SITE = "attention_probabilities"  # of the dropout
CHUNK, CHUNK_SCORES = 128, 2**19  # queries of a chunk, at least, and the scores of one head that a chunk should have
Places: TypeAlias = tuple[jax.Array, jax.Array]  # positions of queries [..., Q] and of keys [..., K] within the row


def plain(factors: Factors, visible: Visible, rate: float, rng: RowRng | None) -> jax.Array:
    """Return attention [B, L, H, head_dim] in the form that suits the rows and the window."""
    forms = {"dense": dense, "chunked": chunked, "local": local}
    return forms[form_of(factors[0].shape[1], visible.window)](factors, visible, rate, rng)


def dense(factors: Factors, visible: Visible, rate: float, rng: RowRng | None) -> jax.Array:
    """Return attention [B, L, H, head_dim] from all scores at once, [B, H, L, L]."""
    return _attention(factors, bias(visible), rate, rng)


def chunked(factors: Factors, visible: Visible, rate: float, rng: RowRng | None, size: int | None = None) -> jax.Array:
    """Return attention [B, L, H, head_dim], with the scores of about ``size`` queries at a time.

    The backward pass computes the scores of each chunk again, so that memory is O(L * size).
    """
    query, key, value = factors
    batch, length, heads, _ = query.shape
    count = -(-length // (size or max(CHUNK, CHUNK_SCORES // length)))
    size = -(-length // count)
    query_ids, key_ids = visible.ids()

    def cut(x: jax.Array) -> jax.Array:  # [B, L, ...] -> [count, B, size, ...]
        return jnp.moveaxis(_padded(x, 0, count * size - length).reshape(batch, count, size, *x.shape[2:]), 1, 0)

    @functools.partial(jax.checkpoint, prevent_cse=False)  # a loop cannot be merged with the one of the forward pass
    def of_chunk(chunk: tuple[jax.Array, ...]) -> jax.Array:
        query, ids, queries = chunk
        places = (queries, jnp.arange(length))
        added = bias_between(visible, (ids, key_ids), places)
        return _attention((query, key, value), added, rate, rng, _index(places, heads, length))

    chunks = jax.lax.map(of_chunk, (cut(query), cut(query_ids), jnp.arange(count * size).reshape(count, size)))
    out = jnp.moveaxis(chunks, 0, 1).reshape(batch, count * size, *query.shape[2:])[:, :length]
    return checkpoint_name(out, OUTPUT)  # type: ignore[no-any-return]


def local(factors: Factors, visible: Visible, rate: float, rng: RowRng | None) -> jax.Array:
    """Return attention [B, L, H, head_dim] within ``visible.window``, in time and memory O(L * window).

    Rows are cut into N blocks of at least ``window`` positions. The queries of a block see its keys and those within
    the window before and after it; what a block reads outside of the row is padding, which nothing sees.
    """
    query, key, value = factors
    batch, length, heads, _ = query.shape
    assert visible.window is not None
    before = visible.window
    after = 0 if visible.causal else before
    block = block_of(before)
    count = -(-length // block)
    rest = count * block - length

    def blocks(x: jax.Array) -> jax.Array:  # [B, L, ...] -> [B, N, block, ...]
        return _padded(x, 0, rest).reshape(batch, count, block, *x.shape[2:])

    def around(x: jax.Array) -> jax.Array:  # [B, L, ...] -> [B, N, before + block + after, ...]
        x = _padded(x, block, block + rest).reshape(batch, count + 2, block, *x.shape[2:])
        return jnp.concatenate([x[:, :-2, block - before :], x[:, 1:-1], x[:, 2:, :after]], axis=2)

    query_ids, key_ids = visible.ids()
    first = block * jnp.arange(count)[:, None]
    places = (first + jnp.arange(block)[None], first + jnp.arange(-before, block + after)[None])
    added = bias_between(visible, (blocks(query_ids), around(key_ids)), places)
    near = (blocks(query), around(key), around(value))
    out = _attention(near, added, rate, rng, _index(places, heads, length))
    return out.reshape(batch, count * block, *query.shape[2:])[:, :length]


def _attention(
    factors: Factors, added: jax.Array, rate: float, rng: RowRng | None, index: jax.Array | None = None
) -> jax.Array:
    """Return attention [B, ..., Q, H, head_dim].

    Args:
      factors: query [B, ..., Q, H, head_dim], key and value [B, ..., K, H, head_dim].
      added: what is added to the scores, [B, ..., 1, 1 or Q, K].
      index: of each probability within its row's [H, L, L], uint32 [..., H, Q, K]. If None, they are all of the row's.
    """
    query, key, value = factors
    found = scores(query, key)
    weights = jax.nn.softmax(found + jnp.broadcast_to(added, found.shape))
    weights = dropout(weights, rate, rng, SITE, index)
    return jnp.einsum("...hqk,...khd->...qhd", weights.astype(value.dtype), value)


def scores(query: jax.Array, key: jax.Array) -> jax.Array:
    """Return query key^T / sqrt(head_dim), [..., H, Q, K] float32 or wider, for [..., Q or K, H, head_dim] each."""
    assert min(query.shape[-3], key.shape[-3]) < LONG, f"all scores of rows of {key.shape[-3]} positions at once"
    wide = jnp.promote_types(query.dtype, jnp.float32)
    return products(query / math.sqrt(query.shape[-1]), key, wide)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def products(query: jax.Array, key: jax.Array, dtype: Any) -> jax.Array:
    """Return [..., H, Q, K] of query [..., Q, H, head_dim] and key [..., K, H, head_dim], accumulated in ``dtype``.

    The gradients are computed in the dtype of query and key, because jax's own rule would use ``dtype``, which is slow.
    """
    return jnp.einsum(SCORES, query, key, preferred_element_type=dtype)


def _products(query: jax.Array, key: jax.Array, dtype: Any) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return products(query, key, dtype), (query, key)


def _gradients(dtype: Any, factors: tuple[jax.Array, jax.Array], gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    del dtype
    _, backward = jax.vjp(functools.partial(jnp.einsum, SCORES), *factors)
    return backward(gradient.astype(factors[0].dtype))  # type: ignore[no-any-return]


products.defvjp(_products, _gradients)


def _padded(x: jax.Array, before: int, after: int) -> jax.Array:
    """Return x [B, L, ...] with zeros before and after the positions."""
    return jnp.pad(x, ((0, 0), (before, after), *((0, 0),) * (x.ndim - 2)))


def _index(places: Places, heads: int, length: int) -> jax.Array:
    """Return the index of each probability within its row's [H, L, L], uint32 [..., H, Q, K].

    A key outside of the row has the index of another probability; its own is 0.
    """
    queries, keys = places
    within = (queries[..., :, None] * length + keys[..., None, :]).astype(jnp.uint32)[..., None, :, :]
    first = jnp.arange(heads, dtype=jnp.uint32) * jnp.uint32(length * length)
    return within + first.reshape((1,) * (within.ndim - 3) + (heads, 1, 1))
