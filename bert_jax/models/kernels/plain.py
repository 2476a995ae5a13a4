"""Attention by jax alone, which every device runs and the partitioner divides over rows and heads.

There are three forms with the same result but for rounding, dropout included. The length of rows and the window of a
layer alone choose the form, so that the scores of a long row, [L, L], are never held at once. Queries that are other
tokens than the keys (``Visible.queries``) have ``dense`` and ``chunked``.
``dense`` holds the scores of all queries and keys. ``chunked`` holds the scores of some queries at a time and
computes them again in the backward pass. ``local`` computes only scores near the diagonal, for layers with a window.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from bert_jax.models.dropout import RowRng, dropout
from bert_jax.models.kernels.base import OUTPUT, Factors
from bert_jax.models.masks import Pair, Visible, bias, bias_between
from bert_jax.models.products import wide_product

# Products for the scores and with the values. XLA on CPU transposes factors that are not heads first. The blocked forms
# transpose them once; for whole rows that makes no difference.
_LENGTH_FIRST = ("bqhd,bkhd->bhqk", "bhqk,bkhd->bqhd")
_HEADS_FIRST = ("...qd,...kd->...qk", "...qk,...kd->...qd")
SITE = "attention_probabilities"  # of the dropout
_CHUNK, _CHUNK_SCORES = 128, 2**19  # queries of a chunk, at least, and the scores of one head that a chunk should have
_CHUNKED = 1024  # positions of a row from which the scores of some queries are held at a time
LONG = 2048  # positions of a row from which nothing may hold all scores [L, L] at once
_BLOCK = 64  # queries of a block of local attention, at least; on a CPU 128 are slower


def plain(factors: Factors, visible: Visible, rate: float, rng: RowRng | None) -> jax.Array:
    """Return attention [B, Q, H, head_dim] in the form that suits the rows and the window."""
    if visible.queries is not None:
        few = factors[0].shape[1] * factors[1].shape[1] < LONG * _CHUNKED
        return (dense if few else chunked)(factors, visible, rate, rng)
    forms = {"dense": dense, "chunked": chunked, "local": local}
    return forms[form_of(factors[0].shape[1], visible.window)](factors, visible, rate, rng)


def form_of(length: int, window: int | None) -> Literal["dense", "chunked", "local"]:
    """Return the form of plain attention for rows of ``length``: local where that leaves out a quarter of the keys."""
    if window is not None and 4 * (_block_of(window) + 2 * window) <= 3 * length:
        return "local"
    return "chunked" if length >= _CHUNKED else "dense"


def _block_of(window: int) -> int:
    """Return the number of queries that local attention takes together, at least ``window``."""
    return max(window, _BLOCK)


def dense(factors: Factors, visible: Visible, rate: float, rng: RowRng | None) -> jax.Array:
    """Return attention [B, Q, H, head_dim] from all scores at once, [B, H, Q, K]."""
    assert min(x.shape[1] for x in factors) < LONG, f"all scores of rows of {factors[0].shape[1]} positions at once"
    return _attention(factors, bias(visible), rate, rng, None, _LENGTH_FIRST)


def chunked(factors: Factors, visible: Visible, rate: float, rng: RowRng | None, size: int | None = None) -> jax.Array:
    """Return attention [B, Q, H, head_dim], with the scores of about ``size`` queries at a time.

    The backward pass computes the scores of each chunk again, so that memory is O(K * size). Positions are counted in
    the row; queries that are other tokens than the keys have no window, and an order in place of ``causal``.
    """
    length, num_keys = factors[0].shape[1], factors[1].shape[1]
    assert visible.queries is None or not (visible.causal or visible.window), "places of queries are not read here"
    count = -(-length // (size or max(_CHUNK, _CHUNK_SCORES // num_keys)))
    size = -(-length // count)
    (query, key, value), (query_ids, key_ids), orders = _heads_first(factors, visible)
    dtype = query.dtype
    # The loop adds up the gradients of keys and values, which bfloat16 is too narrow for.
    key, value = (x.astype(jnp.promote_types(dtype, jnp.float32)) for x in (key, value))

    def cut(x: jax.Array) -> jax.Array:  # [B, H, L, ...] -> [count, B, H, size, ...]
        return jnp.moveaxis(_cut(x, 0, size), 2, 0)

    @functools.partial(jax.checkpoint, prevent_cse=False)  # a loop cannot be merged with the loop of the forward pass
    def of_chunk(chunk: tuple[Any, ...]) -> jax.Array:
        query, ids, queries, order = chunk
        places = (queries, jnp.arange(num_keys))
        added = bias_between(visible, (ids, key_ids), places, orders and (order, orders[1]))
        index = _index(places, query.shape[1], (length, num_keys))
        return _attention((query, key.astype(dtype), value.astype(dtype)), added, rate, rng, index, _HEADS_FIRST)

    places = jnp.arange(count * size).reshape(count, size)
    chunks = jax.lax.map(of_chunk, (cut(query), cut(query_ids), places, orders and cut(orders[0])))
    return checkpoint_name(_joined(jnp.moveaxis(chunks, 0, 2), length), OUTPUT)  # type: ignore[no-any-return]


def local(factors: Factors, visible: Visible, rate: float, rng: RowRng | None) -> jax.Array:
    """Return attention [B, L, H, head_dim] within ``visible.window``, in time and memory O(L * window).

    Rows are cut into N blocks of at least ``window`` positions. The queries of a block see its keys and those within
    the window before and after it; what a block reads outside of the row is padding, which nothing sees.
    """
    assert visible.window is not None
    before = visible.window
    after = 0 if visible.causal else before
    block, length = _block_of(before), factors[0].shape[1]
    (query, key, value), (query_ids, key_ids), orders = _heads_first(factors, visible)

    def around(x: jax.Array) -> jax.Array:  # [B, H, L, ...] -> [B, H, N, before + block + after, ...]
        x = _cut(x, 1, block)
        return jnp.concatenate([x[:, :, :-2, block - before :], x[:, :, 1:-1], x[:, :, 2:, :after]], axis=3)

    near = (_cut(query, 0, block), around(key), around(value))
    first = block * jnp.arange(near[0].shape[2])[:, None]
    places = (first + jnp.arange(block)[None], first + jnp.arange(-before, block + after)[None])
    cut_orders = orders and (_cut(orders[0], 0, block), around(orders[1]))
    added = bias_between(visible, (_cut(query_ids, 0, block), around(key_ids)), places, cut_orders)
    index = _index(places, query.shape[1], (length, length))
    return _joined(_attention(near, added, rate, rng, index, _HEADS_FIRST), length)


def _attention(
    factors: Factors,
    added: jax.Array,
    rate: float,
    rng: RowRng | None,
    index: jax.Array | None,
    products_of: tuple[str, str],
) -> jax.Array:
    """Return attention of the shape of the query.

    Args:
      factors: query, key and value, with the axes of ``products_of``.
      added: what is added to the scores, broadcast to them.
      index: the index of each probability within its row's [H, L, L], uint32. If None, a row has all of them.
    """
    query, key, value = factors
    found = scores(query, key, products_of[0])
    weights = jax.nn.softmax(found + jnp.broadcast_to(added, found.shape))
    weights = dropout(weights, rate, rng, SITE, index)
    return jnp.einsum(products_of[1], weights.astype(value.dtype), value)


def scores(query: jax.Array, key: jax.Array, product: str = _LENGTH_FIRST[0]) -> jax.Array:
    """Return query key^T / sqrt(head_dim), float32 or wider: [B, H, Q, K] for [B, Q or K, H, head_dim]."""
    wide = jnp.promote_types(query.dtype, jnp.float32)
    return wide_product(query / math.sqrt(query.shape[-1]), key, wide, product)


def _heads_first(factors: Factors, visible: Visible) -> tuple[tuple[jax.Array, ...], Pair, Pair | None]:
    """Return query, key and value [B, H, L, head_dim]; ids of queries and of keys [B, 1, L]; and their order alike."""
    (query_ids, key_ids), orders = visible.ids(), visible.orders()
    ids = query_ids[:, None], key_ids[:, None]
    return tuple(jnp.swapaxes(x, 1, 2) for x in factors), ids, orders and (orders[0][:, None], orders[1][:, None])


def _cut(x: jax.Array, around: int, size: int) -> jax.Array:
    """Return x [B, H, L, ...] as [B, H, N, size, ...], padded with zeros, with ``around`` more parts at each end."""
    batch, heads, length, *rest = x.shape
    missing = -length % size
    edges = (around * size, missing + around * size)
    padded = jnp.pad(x, ((0, 0), (0, 0), edges, *((0, 0),) * len(rest)))
    return padded.reshape(batch, heads, -1, size, *rest)


def _joined(x: jax.Array, length: int) -> jax.Array:
    """Return x [B, H, N, size, head_dim] as [B, L, H, head_dim]."""
    batch, heads, _, _, head_dim = x.shape
    return jnp.swapaxes(x.reshape(batch, heads, -1, head_dim)[:, :, :length], 1, 2)


def _index(places: Pair, heads: int, lengths: tuple[int, int]) -> jax.Array:
    """Return the index of each probability within its row's [H, *lengths], uint32 [H, ..., Q, K].

    ``places``: positions of queries [..., Q] and of keys [..., K]. A key outside of the row has any index; its
    probability is 0.
    """
    queries, keys = places
    within = (queries[..., :, None] * lengths[1] + keys[..., None, :]).astype(jnp.uint32)[None]
    first = jnp.arange(heads, dtype=jnp.uint32) * jnp.uint32(lengths[0] * lengths[1])
    return within + first.reshape(heads, *(1,) * (within.ndim - 1))
