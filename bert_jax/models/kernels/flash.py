"""Computes attention with dropout in GPU kernels that hold no scores in memory.

The algorithm is section 3.1 of Dao 2023 (arXiv 2307.08691). The dropout has the bits of ``models.dropout``. A program
of the forward kernel has some queries of one head and goes over the keys that they see. A program of a backward kernel
goes over the keys of its queries, or over the queries of its keys, and computes the probabilities again from the
logarithm of each softmax's denominator. Blocks of keys that no query of a program sees, because of the window, the
padding or the borders of packed sequences, are not read at all.

JAX 0.12 deprecates Pallas on Triton and still compiles it. Kernels in Triton's language gave the same values in
Triton's interpreter, and the same products in an H100's machine code. But for layers with a window, Triton 3.7 gives
the kernels so many registers that fewer programs share a processor, and jax_triton 0.4.1 fails under ``jax.jit`` of JAX
0.12. Kernels in Triton's language have to be measured on a GPU before they replace the kernels of this file.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jax.experimental.xla_metadata import set_xla_metadata

from bert_jax.models.dropout import mix
from bert_jax.models.kernels.base import (
    OUTPUT,
    TOTAL,
    Arrays,
    Case,
    Factors,
    other_dtype,
    other_heads,
    other_platform,
    parts_of_heads,
)

_UNSEEN = -1e30  # the score of a key that a query does not see, before the softmax
_MULTIPLE = 128  # rows are padded to a multiple of this number, which all sizes of blocks divide
WORTHWHILE = 128


@dataclasses.dataclass(frozen=True)
class _Blocks:
    """The sizes of one kernel: how many queries and keys are multiplied at a time, and what the compiler is told.

    Attributes:
      parts: what a program has of each input: a block of "queries" or of "keys", or "all" positions of the row.
      products: the number of products of matrices for each block of scores.
    """

    queries: int
    keys: int
    warps: int
    stages: int
    parts: tuple[str, ...]
    products: int


# The fastest of six or seven each on an H100, for heads of 64 entries (tests/benchmarks/README.md).
_FORWARD = _Blocks(128, 64, 8, 3, ("queries", "all", "all"), products=2)
_OF_QUERIES = _Blocks(128, 64, 4, 2, ("queries", "all", "all", "queries"), products=3)
_OF_KEYS = _Blocks(64, 64, 4, 3, ("all", "keys", "keys", "all"), products=4)


@dataclasses.dataclass(frozen=True)
class _Form:
    """The constants for which the kernels are compiled.

    Attributes:
      length: L of the rows before they are padded, by which dropout counts.
      interpret: whether the kernels are interpreted by jax, on any device, instead of compiled for a GPU.
    """

    length: int
    head_dim: int
    rate: float
    causal: bool
    window: int | None
    interpret: bool

    @property
    def scale(self) -> float:
        return 1.0 / math.sqrt(self.head_dim)

    @property
    def to_exponent(self) -> float:
        """The factor from a product of query and key to an exponent of 2."""
        return self.scale * math.log2(math.e)


def obstacle(case: Case) -> str | None:
    return other_platform(case, "gpu") or other_dtype(case, "bfloat16") or other_heads(case) or parts_of_heads(case)


def attend(factors: Factors, ids: Arrays, dropout_keys: Arrays, case: Case) -> jax.Array:
    """Return attention [B, L, H, head_dim] with dropout and windows (``base.Kernel``)."""
    length, head_dim = factors[0].shape[1], factors[0].shape[3]
    form = _Form(length, head_dim, case.rate, case.causal, case.window, interpret=case.platform == "cpu")
    end = (0, -length % _MULTIPLE)
    padded = tuple(jnp.pad(x, ((0, 0), end, (0, 0), (0, 0))) for x in factors)
    query_ids, key_ids = (jnp.pad(x, ((0, 0), end)) for x in ids)
    key_ids = jnp.where(key_ids > 0, key_ids, -1)  # no query sees padding, not even a query of padding
    return _attention(form, padded, (query_ids, key_ids), dropout_keys)[:, :length]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(form: _Form, factors: Arrays, ids: Arrays, dropout_keys: Arrays) -> jax.Array:
    return _forward(form, factors, ids, dropout_keys)[0]


def _forward(form: _Form, factors: Arrays, ids: Arrays, dropout_keys: Arrays) -> tuple[jax.Array, tuple[Any, ...]]:
    query = factors[0]
    batch, length, heads, _ = query.shape
    totals = jax.ShapeDtypeStruct((batch, heads, length), jnp.float32)
    out, total = _call(_forward_kernel, form, _FORWARD, (ids, dropout_keys), (factors, ()), (query, totals))
    out, total = checkpoint_name(out, OUTPUT), checkpoint_name(total, TOTAL)
    return out, (factors, ids, dropout_keys, out, total)


def _backward(form: _Form, kept: tuple[Any, ...], gradient: jax.Array) -> tuple[Any, ...]:
    factors, ids, dropout_keys, out, total = kept
    query, key, value = factors
    mean = jnp.einsum("blhd,blhd->bhl", gradient, out, preferred_element_type=jnp.float32)
    scalars, arrays = (ids, dropout_keys), ((*factors, gradient), (total, mean))
    [dq] = _call(_of_queries_kernel, form, _OF_QUERIES, scalars, arrays, (query,))
    dk, dv = _call(_of_keys_kernel, form, _OF_KEYS, scalars, arrays, (key, value))
    of_integers = jax.tree.map(lambda x: np.zeros(x.shape, jax.dtypes.float0), (ids, dropout_keys))
    return (dq, dk, dv), *of_integers


_attention.defvjp(_forward, _backward)


def _call(
    kernel: Callable[..., None],
    form: _Form,
    blocks: _Blocks,
    scalars: tuple[Arrays, Arrays],
    arrays: tuple[Arrays, Arrays],
    outputs: tuple[Any, ...],
) -> Any:
    """Run a kernel over the blocks of queries or of keys, all heads and all rows.

    Args:
      scalars: ids of queries and of keys, and the keys of dropout, as in ``attend``.
      arrays: arrays of vectors [B, L, H, head_dim], and arrays of a number for each query, float32 [B, H, L].
      outputs: shapes and dtypes; [B, L, H, head_dim], of which a program writes a block, or [B, H, L].
    """
    (query_ids, key_ids), (row_keys, first_head) = scalars
    inputs, of_rows = arrays
    batch, length, heads, head_dim = inputs[0].shape
    over = "keys" if blocks.parts[0] == "all" else "queries"
    size = {"queries": blocks.queries, "keys": blocks.keys, "all": length}

    def vectors(part: str) -> pl.BlockSpec:
        return pl.BlockSpec((None, size[part], None, head_dim), lambda i, h, b: (b, 0 if part == "all" else i, h, 0))

    def numbers(part: str) -> pl.BlockSpec:
        return pl.BlockSpec((None, None, size[part]), lambda i, h, b: (b, h, 0 if part == "all" else i))

    def of_ids(part: str) -> pl.BlockSpec:
        return pl.BlockSpec((None, size[part]), lambda i, h, b: (b, 0 if part == "all" else i))

    of_queries, of_keys = ("queries", "all") if over == "queries" else ("all", "keys")
    span, row_key = pl.BlockSpec((None, None), lambda i, h, b: (b, i)), pl.BlockSpec((None,), lambda i, h, b: (b,))
    head = pl.BlockSpec((None,), lambda i, h, b: (0,))
    read = (span, span, row_key, head, of_ids(of_queries), of_ids(of_keys))
    first, last = _span(form, blocks, (query_ids, key_ids), over)
    cost = _cost(form, blocks, (*inputs, *outputs))
    call = pl.pallas_call(
        functools.partial(kernel, form, blocks),
        grid=(length // size[over], heads, batch),
        in_specs=[*read, *map(vectors, blocks.parts), *[numbers(of_queries)] * len(of_rows)],
        out_specs=[vectors(over) if len(x.shape) == 4 else numbers(over) for x in outputs],
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in outputs],
        compiler_params=plgpu.CompilerParams(num_warps=blocks.warps, num_stages=blocks.stages),
        cost_estimate=cost,
        interpret=form.interpret,
        name=f"flash_attention{kernel.__name__.removesuffix('_kernel')}",
    )
    # For planning/costs.py: JAX drops the cost estimate of a kernel that is compiled by Triton.
    with set_xla_metadata(kernel_flops=str(cost.flops), kernel_elementwise=str(cost.transcendentals)):
        return call(first, last, row_keys, first_head, query_ids, key_ids, *inputs, *of_rows)


def _cost(form: _Form, blocks: _Blocks, moved: tuple[Any, ...]) -> pl.CostEstimate:
    """Return what the compiler and ``bert-jax plan`` are told of a kernel's work, as if a row were one sequence.

    As for the kernel of TPUs, ``flops`` holds the matrix products alone, ``transcendentals`` all other operations.
    """
    batch, length, heads, head_dim = moved[0].shape
    near = length if form.window is None else min(length, 2 * form.window + blocks.queries)
    scores = batch * heads * length * near
    size = sum(math.prod(x.shape) * x.dtype.itemsize for x in moved)
    # Of a score: 8 to see, scale, exponentiate, sum and cast it; 4 for a window; 21 for the hash of its dropout bit.
    each = 8 + (4 if form.window is not None else 2 * form.causal) + 21 * (form.rate > 0)
    products = 2 * blocks.products * scores * head_dim
    return pl.CostEstimate(flops=products, transcendentals=each * scores, bytes_accessed=size)


def _span(form: _Form, blocks: _Blocks, ids: Arrays, over: str) -> tuple[jax.Array, jax.Array]:
    """Return the blocks of keys that each block of queries sees, as [first, last): [B, blocks of queries] int32 each.

    Over "keys", return the blocks of queries that see each block of keys.
    """
    sizes = (blocks.queries, blocks.keys)
    real = jnp.iinfo(jnp.int32).max
    parts = [x.reshape(x.shape[0], -1, size) for x, size in zip(ids, sizes, strict=True)]
    (query_most, key_most) = (x.max(-1) for x in parts)
    (query_least, key_least) = (jnp.where(x > 0, x, real).min(-1) for x in parts)
    near = (query_least[:, :, None] <= key_most[:, None]) & (key_least[:, None] <= query_most[:, :, None])
    starts = [size * np.arange(x.shape[1]) for x, size in zip(parts, sizes, strict=True)]
    queries, keys = starts[0][None, :, None], starts[1][None, None]
    if form.causal:
        near &= keys < queries + blocks.queries
    if form.window is not None:
        near &= (keys - queries - blocks.queries < form.window) & (queries - keys - blocks.keys < form.window)
    seen = near if over == "queries" else jnp.swapaxes(near, 1, 2)
    first = jnp.argmax(seen, axis=2)
    last = seen.shape[2] - jnp.argmax(seen[:, :, ::-1], axis=2)
    return first.astype(jnp.int32), jnp.where(seen.any(2), last, 0).astype(jnp.int32)


# ---- The kernels --------------------------------------------------------------------------------------------------


def _forward_kernel(form: _Form, blocks: _Blocks, first, last, row_key, first_head, *refs) -> None:  # type: ignore[no-untyped-def]
    query_ids, key_ids, query, key, value, out, total = refs
    start = pl.program_id(0) * blocks.queries
    ids, q = query_ids[...], query[...]
    decide = _Decisions(form, row_key, first_head)

    def step(block: Any, state: Any) -> Any:
        mixed, most, denominator = state
        keys = pl.ds(block * blocks.keys, blocks.keys)
        places = (start, blocks.queries), (block * blocks.keys, blocks.keys)
        scores = jnp.where(decide.sees(ids, key_ids[keys], *places), _dot(q, key[keys, :].T), _UNSEEN)
        now = jnp.maximum(most, jnp.max(scores, axis=1))
        weights = jnp.exp2((scores - now[:, None]) * form.to_exponent)
        before = jnp.exp2((most - now) * form.to_exponent)
        denominator = denominator * before + jnp.sum(weights, axis=1)
        if form.rate:
            weights = jnp.where(decide.keeps(*places), weights, 0.0)
        mixed = mixed * before[:, None] + _dot(weights.astype(value.dtype), value[keys, :])
        return mixed, now, denominator

    zeros = jnp.zeros(blocks.queries, jnp.float32)
    state = (jnp.zeros((blocks.queries, form.head_dim), jnp.float32), zeros + _UNSEEN, zeros)
    mixed, most, denominator = jax.lax.fori_loop(first[...], last[...], step, state)
    denominator = jnp.where(denominator > 0.0, denominator, 1.0)  # of a program that reads no block
    out[...] = (mixed / (denominator * (1.0 - form.rate))[:, None]).astype(out.dtype)
    total[...] = most * form.to_exponent + jnp.log2(denominator)


def _of_queries_kernel(form: _Form, blocks: _Blocks, first, last, row_key, first_head, *refs) -> None:  # type: ignore[no-untyped-def]
    query_ids, key_ids, query, key, value, gradient, total, mean, dq = refs
    start = pl.program_id(0) * blocks.queries
    ids, q, do, totals, means = query_ids[...], query[...], gradient[...], total[...], mean[...]
    decide = _Decisions(form, row_key, first_head)

    def step(block: Any, found: Any) -> Any:
        keys = pl.ds(block * blocks.keys, blocks.keys)
        places = (start, blocks.queries), (block * blocks.keys, blocks.keys)
        k = key[keys, :]
        seen = decide.sees(ids, key_ids[keys], *places)
        weights = jnp.where(seen, jnp.exp2(_dot(q, k.T) * form.to_exponent - totals[:, None]), 0.0)
        d_weights = _dot(do, value[keys, :].T)
        if form.rate:
            d_weights = jnp.where(decide.keeps(*places), d_weights / (1.0 - form.rate), 0.0)
        return found + _dot((weights * (d_weights - means[:, None])).astype(k.dtype), k)

    found = jnp.zeros((blocks.queries, form.head_dim), jnp.float32)
    found = jax.lax.fori_loop(first[...], last[...], step, found)
    dq[...] = (found * form.scale).astype(dq.dtype)


def _of_keys_kernel(form: _Form, blocks: _Blocks, first, last, row_key, first_head, *refs) -> None:  # type: ignore[no-untyped-def]
    query_ids, key_ids, query, key, value, gradient, total, mean, dk, dv = refs
    start = pl.program_id(0) * blocks.keys
    ids, k, v = key_ids[...], key[...], value[...]
    decide = _Decisions(form, row_key, first_head)

    def step(block: Any, found: Any) -> Any:  # scores are [keys, queries] here
        dk, dv = found
        queries = pl.ds(block * blocks.queries, blocks.queries)
        places = (block * blocks.queries, blocks.queries), (start, blocks.keys)
        q, do = query[queries, :], gradient[queries, :]
        seen = decide.sees(query_ids[queries], ids, *places, keys_first=True)
        weights = jnp.where(seen, jnp.exp2(_dot(k, q.T) * form.to_exponent - total[queries][None]), 0.0)
        dropped, d_weights = weights, _dot(v, do.T)
        if form.rate:
            kept, gain = decide.keeps(*places, keys_first=True), 1.0 / (1.0 - form.rate)
            dropped, d_weights = jnp.where(kept, weights * gain, 0.0), jnp.where(kept, d_weights * gain, 0.0)
        dv = dv + _dot(dropped.astype(do.dtype), do)
        dk = dk + _dot((weights * (d_weights - mean[queries][None])).astype(q.dtype), q)
        return dk, dv

    zeros = jnp.zeros((blocks.keys, form.head_dim), jnp.float32)
    found_k, found_v = jax.lax.fori_loop(first[...], last[...], step, (zeros, zeros))
    dk[...] = (found_k * form.scale).astype(dk.dtype)
    dv[...] = found_v.astype(dv.dtype)


class _Decisions:
    """What a query sees, and which probabilities dropout keeps."""

    def __init__(self, form: _Form, row_key: Any, first_head: Any) -> None:
        self._form, self._row_key = form, row_key[...]
        self._head = first_head[...] + pl.program_id(1)

    def sees(self, query_ids: Any, key_ids: Any, queries: Any, keys: Any, keys_first: bool = False) -> jax.Array:
        """Return whether each query sees each key, [queries, keys]; ``queries``, ``keys``: (first position, number)."""
        form = self._form
        seen = _across(query_ids, keys_first) == _across(key_ids, not keys_first)
        if form.causal or form.window is not None:
            at, key_at = self._places(queries, keys, keys_first)
            if form.causal:
                seen &= key_at <= at
            if form.window is not None:
                seen &= jnp.abs(key_at - at) <= form.window
        return seen

    def keeps(self, queries: Any, keys: Any, keys_first: bool = False) -> jax.Array:
        """Return which probabilities are kept, [queries, keys], by ``models.dropout``."""
        form = self._form
        at, key_at = self._places(queries, keys, keys_first)
        index = (self._head * (form.length * form.length) + at * form.length) + key_at
        return mix(self._row_key ^ mix(index.astype(jnp.uint32))) >= jnp.uint32(round(form.rate * 2**32))

    def _places(self, queries: Any, keys: Any, keys_first: bool) -> tuple[jax.Array, jax.Array]:
        (query, count), (key, key_count) = queries, keys
        return _across(query + jnp.arange(count), keys_first), _across(key + jnp.arange(key_count), not keys_first)


def _across(x: jax.Array, last: bool) -> jax.Array:
    """Return x [n] as [1, n] if ``last``, otherwise as [n, 1]."""
    return x[None, :] if last else x[:, None]


def _dot(left: jax.Array, right: jax.Array) -> jax.Array:
    return jax.lax.dot(left, right, preferred_element_type=jnp.float32)
