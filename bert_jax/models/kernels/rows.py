"""Computes attention with dropout in a TPU kernel that holds whole rows on the chip: no score reaches main memory.

The dropout has the bits of ``models.dropout``. A program of the grid works on rows of as many heads as fill 128
lanes. For every 256 queries it computes the scores of all keys at once, with the keys on sublanes and the queries on
lanes: the softmax then reduces over sublanes, which is cheap, and only blocks of 128 lanes are transposed. A product
for one head is a product over all 128 lanes in which the other heads' lanes are zero; the matrix unit would pad 64
lanes to 128 anyway. The backward pass reads the inputs, the output, and the logarithm of each
softmax's denominator, and computes the dropout bits again.
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
from jax.experimental.pallas import tpu as pltpu

from bert_jax.models.kernels.base import (
    LANES,
    OUTPUT,
    TOTAL,
    Arrays,
    Case,
    Factors,
    a_window,
    other_dtype,
    other_heads,
    other_platform,
)
from bert_jax.models.masks import HIDDEN

_BLOCK = 256  # keys that the backward pass works on at a time
_LONGEST = {"bfloat16": 2048, "float32": 1024}  # rows of more positions do not fit into the memory of every TPU
_POSITIONS = 1024  # of the rows of one program: short rows are taken several at a time
_PLACES_BYTES = 4 * 2**20  # hashes of places are kept on the chip if they take no more than this
_VMEM_BYTES = 64 * 2**20  # of the chip's own memory that a program may use, where there is as much
_NT = (((1,), (1,)), ((), ()))  # contracts the last axis of both factors
_NN = (((1,), (0,)), ((), ()))
WORTHWHILE = 256  # XLA itself keeps scores of shorter rows on a TPU's chip

# Operations on each score outside of the matrix products, as ``_cost`` counts them.
_FORWARD_OPERATIONS, _BACKWARD_OPERATIONS, _DROPOUT_OPERATIONS = 8, 12, 12


@dataclasses.dataclass(frozen=True)
class _Form:
    """The constants for which the kernel is compiled.

    Attributes:
      length: L, a multiple of 128.
      head_dim: a divisor of 128; a multiple of 128 / head_dim heads is needed.
      interpret: whether the kernel is interpreted by jax, on any device, instead of compiled for a TPU.
    """

    length: int
    head_dim: int
    rate: float = 0.0
    causal: bool = False
    interpret: bool = False

    @property
    def heads(self) -> int:
        """The number of heads of a program."""
        return LANES // self.head_dim

    def lanes(self, head: int) -> slice:
        return slice(head * self.head_dim, (head + 1) * self.head_dim)

    @property
    def chunk(self) -> int:
        """The number of queries that are worked on at a time; more overlap better."""
        return LANES if self.length % (2 * LANES) else 2 * LANES

    @property
    def keeps_places(self) -> bool:
        """Whether the hashes of the places, which all rows share, are kept while rows go by."""
        return self.rate > 0 and 4 * self.heads * self.length * self.length <= _PLACES_BYTES


def obstacle(case: Case) -> str | None:
    if wrong := other_platform(case, "tpu") or other_dtype(case, *_LONGEST) or other_heads(case):
        return wrong
    together = LANES // case.head_dim
    if case.num_heads % together:
        return f"takes {together} heads of {case.head_dim} entries at a time, and a device has {case.num_heads:g}"
    if case.length % LANES or case.length > _LONGEST[case.dtype]:
        longest = f"a multiple of {LANES} up to {_LONGEST[case.dtype]:,} in {case.dtype}"
        return f"needs rows whose length is {longest}, and they have {case.length:,} positions"
    return a_window(case)


def attend(factors: Factors, ids: Arrays, dropout_keys: Arrays, case: Case) -> jax.Array:
    """Return attention [B, L, H, head_dim] with dropout (``base.Kernel``)."""
    query, key, value = factors
    batch, length, heads, head_dim = query.shape
    flat = [x.reshape(batch, length, heads * head_dim) for x in (query / math.sqrt(head_dim), key, value)]
    of_queries, of_keys = (of_rows[:, None] for of_rows in ids)
    form = _Form(length, head_dim, case.rate, case.causal, interpret=case.platform == "cpu")
    return _attention(form, tuple(flat), (of_queries, of_keys), dropout_keys).reshape(query.shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(form: _Form, flat: Arrays, ids: Arrays, scalars: Arrays) -> jax.Array:
    """Return ``attend`` of query, key and value [B, L, H * head_dim], the queries scaled, with ids [B, 1, L]."""
    return _forward(form, flat, ids, scalars)[0]


def _forward(form: _Form, flat: Arrays, ids: Arrays, scalars: Arrays) -> tuple[jax.Array, tuple[Any, ...]]:
    row_keys, first_head = scalars
    scalars = (jax.lax.bitcast_convert_type(row_keys, jnp.int32), first_head)
    out, total = _call(_forward_kernel, form, scalars, ids, flat)
    out, total = checkpoint_name(out, OUTPUT), checkpoint_name(total, TOTAL)
    return out, (flat, ids, scalars, out, total)


def _backward(form: _Form, kept: tuple[Any, ...], gradient: jax.Array) -> tuple[Any, ...]:
    flat, ids, scalars, out, total = kept
    of_factors = _call(_backward_kernel, form, scalars, ids, (*flat, out, gradient), total)
    of_integers = jax.tree.map(lambda x: np.zeros(x.shape, jax.dtypes.float0), (ids, scalars))
    return tuple(of_factors), *of_integers


_attention.defvjp(_forward, _backward)


def _call(
    kernel: Callable[..., None],
    form: _Form,
    scalars: Arrays,
    ids: Arrays,
    inputs: Arrays,
    total: jax.Array | None = None,
) -> Any:
    """Run a kernel over all heads and rows.

    ``total`` holds the logarithms that the forward kernel kept for the backward one, [H / heads, B, heads, L].
    """
    batch, length, width = inputs[0].shape
    rows = int(np.gcd(batch, max(1, _POSITIONS // length)))
    block = pl.BlockSpec((rows, length, LANES), lambda h, b, *_: (b, 0, h))
    row_ids = pl.BlockSpec((rows, 1, length), lambda h, b, *_: (b, 0, 0))
    of_queries = pl.BlockSpec((None, rows, form.heads, length), lambda h, b, *_: (h, b, 0, 0))
    places = (length // form.chunk, length) if form.keeps_places else (1, 8)
    scratch = [pltpu.VMEM((form.heads, *places, form.chunk), jnp.int32), pltpu.VMEM((length, form.chunk), jnp.float32)]
    like = jax.ShapeDtypeStruct(inputs[0].shape, inputs[0].dtype)
    if total is None:
        shape = (width // LANES, batch, form.heads, length)
        outputs, out_specs = [like, jax.ShapeDtypeStruct(shape, jnp.float32)], [block, of_queries]
        specs, operands = [row_ids] * 2 + [block] * 3, (*ids, *inputs)
    else:
        outputs, out_specs = [like] * 3, [block] * 3
        specs, operands = [row_ids] * 2 + [block] * 5 + [of_queries], (*ids, *inputs, total)
        scratch += [pltpu.VMEM((rows, length, LANES), jnp.float32)] * 2
    return pl.pallas_call(
        functools.partial(kernel, form, rows),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars),
            grid=(width // LANES, batch // rows),
            in_specs=specs,
            out_specs=out_specs,
            scratch_shapes=scratch,
        ),
        out_shape=outputs,
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=_VMEM_BYTES
        ),
        cost_estimate=_cost(form, batch, width, (*operands, *outputs), backward=total is not None),
        interpret=form.interpret,
        name="row_attention_forward" if total is None else "row_attention_backward",
    )(*scalars, *operands)


def _cost(form: _Form, batch: int, width: int, moved: tuple[Any, ...], backward: bool) -> pl.CostEstimate:
    """Return what the compiler and ``bert-jax plan`` are told of the kernel's work.

    ``flops`` holds the matrix products alone, with the lanes that are zero, and ``transcendentals`` all other
    operations, each counted once, because two different units do them.
    """
    scores = batch * (width // form.head_dim) * form.length**2
    # Of the products, all but the last are over the lanes of all heads.
    wide, operations = (4, _BACKWARD_OPERATIONS) if backward else (1, _FORWARD_OPERATIONS)
    return pl.CostEstimate(
        flops=2 * scores * (wide * LANES + form.head_dim),
        transcendentals=(operations + (_DROPOUT_OPERATIONS if form.rate else 0)) * scores,
        bytes_accessed=sum(x.size * x.dtype.itemsize for x in moved),
    )


# ---- The two kernels ----------------------------------------------------------------------------------------------


def _forward_kernel(form: _Form, rows: int, row_keys, first_head, *refs) -> None:  # type: ignore[no-untyped-def]
    query_ids, key_ids, query, key, value, out, total, places, column = refs
    dropout = _Dropout(form, rows, row_keys, first_head, places)

    def attend(row: Any, chunk: Any) -> None:
        queries = _queries(form, chunk)
        q, k, v_t = query[row, queries, :], key[row], jnp.transpose(value[row])
        bias = _bias(form, query_ids[row, :, queries], column[...], 0, chunk)
        mixed = []
        for head in range(form.heads):
            scores = _dot(k, _only(form, head, q), _NT) + bias  # [keys, queries]
            largest = jnp.max(scores, axis=0, keepdims=True)
            weights = jnp.exp(scores - largest)
            denominator = jnp.sum(weights, axis=0, keepdims=True)
            total[row, head : head + 1, queries] = largest + jnp.log(denominator)
            if form.rate:
                weights = jnp.where(dropout.keeps(row, head, chunk, 0, form.length), weights, 0.0)
            gain = 1.0 / (denominator * (1.0 - form.rate))
            mixed.append(_dot(v_t[form.lanes(head)], weights.astype(v_t.dtype), _NN) * gain)
        out[row, queries, :] = jnp.transpose(jnp.concatenate(mixed, axis=0)).astype(out.dtype)

    _each(form, rows, key_ids, column, attend)


def _backward_kernel(form: _Form, rows: int, row_keys, first_head, *refs) -> None:  # type: ignore[no-untyped-def]
    query_ids, key_ids, query, key, value, out, d_out, total, dq, dk, dv, places, column, dk_sum, dv_sum = refs
    dropout, gain = _Dropout(form, rows, row_keys, first_head, places), 1.0 / (1.0 - form.rate)
    dk_sum[...] = jnp.zeros_like(dk_sum)
    dv_sum[...] = jnp.zeros_like(dv_sum)

    def differentiate(row: Any, chunk: Any) -> None:
        queries = _queries(form, chunk)
        q, do, ids = query[row, queries, :], d_out[row, queries, :], query_ids[row, :, queries]
        both = jnp.transpose(do.astype(jnp.float32) * out[row, queries, :].astype(jnp.float32))  # [lanes, queries]
        means = [jnp.sum(both[form.lanes(head)], axis=0, keepdims=True) for head in range(form.heads)]
        dq_t = [jnp.zeros((form.head_dim, form.chunk), jnp.float32)] * form.heads
        for start in range(0, form.length, _BLOCK):
            size = min(_BLOCK, form.length - start)
            keys = pl.ds(start, size)
            k, v = key[row, keys, :], value[row, keys, :]
            k_t = jnp.transpose(k)
            bias = _bias(form, ids, column[keys], start, chunk)
            dk_block, dv_block = jnp.zeros((size, LANES), jnp.float32), jnp.zeros((size, LANES), jnp.float32)
            for head in range(form.heads):
                q_head, do_head = _only(form, head, q), _only(form, head, do)
                p = jnp.exp(_dot(k, q_head, _NT) + bias - total[row, head : head + 1, queries])  # [keys, queries]
                dropped, dp = p, _dot(v, do_head, _NT)
                if form.rate:
                    kept = dropout.keeps(row, head, chunk, start, size)
                    dropped, dp = jnp.where(kept, p * gain, 0.0), jnp.where(kept, dp * gain, 0.0)
                ds = (p * (dp - means[head])).astype(q.dtype)
                dv_block += _dot(dropped.astype(do.dtype), do_head, _NN)
                dk_block += _dot(ds, q_head, _NN)
                dq_t[head] += _dot(k_t[form.lanes(head)], ds, _NN)
            dk_sum[row, keys, :] += dk_block
            dv_sum[row, keys, :] += dv_block
        dq[row, queries, :] = jnp.transpose(jnp.concatenate(dq_t, axis=0)).astype(dq.dtype)

    _each(form, rows, key_ids, column, differentiate)
    dk[...] = dk_sum[...].astype(dk.dtype)
    dv[...] = dv_sum[...].astype(dv.dtype)


def _each(form: _Form, rows: int, key_ids: Any, column: Any, work: Callable[[Any, Any], None]) -> None:
    """Call ``work(row, chunk of queries)`` for a whole program; ``column`` holds the ids of a row's keys."""

    def of_row(row: Any, _: Any) -> Any:
        column[...] = jnp.transpose(jnp.broadcast_to(key_ids[row].astype(jnp.float32), (form.chunk, form.length)))
        jax.lax.fori_loop(0, form.length // form.chunk, lambda chunk, _: work(row, chunk), None)
        return _

    jax.lax.fori_loop(0, rows, of_row, None)


def _queries(form: _Form, chunk: Any) -> Any:
    return pl.ds(pl.multiple_of(chunk * form.chunk, form.chunk), form.chunk)


def _dot(left: jax.Array, right: jax.Array, contracted: Any) -> jax.Array:
    return jax.lax.dot_general(left, right, contracted, preferred_element_type=jnp.float32)


def _only(form: _Form, head: int, x: jax.Array) -> jax.Array:
    """Return x [n, 128] with the lanes of all other heads set to zero."""
    if form.heads == 1:
        return x
    lane, mine = jax.lax.broadcasted_iota(jnp.int32, x.shape, 1), form.lanes(head)
    return jnp.where((lane >= mine.start) & (lane < mine.stop), x, jnp.zeros_like(x))


def _positions(form: _Form, size: int, first: Any, chunk: Any) -> tuple[jax.Array, jax.Array]:
    """Return the positions of keys and of queries, each [size, chunk] int32."""
    shape = (size, form.chunk)
    keys = jax.lax.broadcasted_iota(jnp.int32, shape, 0) + first
    return keys, jax.lax.broadcasted_iota(jnp.int32, shape, 1) + chunk * form.chunk


def _bias(form: _Form, query_ids: jax.Array, key_ids: jax.Array, first: Any, chunk: Any) -> jax.Array:
    """Return what is added to the scores, [keys, queries], for query_ids [1, queries] and key_ids [keys, queries]."""
    visible = (key_ids == query_ids.astype(jnp.float32)) & (key_ids > 0)
    if form.causal:
        keys, queries = _positions(form, key_ids.shape[0], first, chunk)
        visible &= keys <= queries
    return jnp.where(visible, 0.0, HIDDEN)


# ---- Dropout ------------------------------------------------------------------------------------------------------


class _Dropout:
    """The decisions of ``models.dropout`` on probabilities [B, H, L, L], computed in the kernel.

    The kernel's integers are signed: shifts are logical, and a comparison flips the highest bit of both sides.
    """

    def __init__(self, form: _Form, rows: int, row_keys: Any, first_head: Any, places: Any) -> None:
        self._form, self._row_keys, self._places = form, row_keys, places
        self._first_row = pl.program_id(1) * rows
        self._first_head = first_head[0] + pl.program_id(0) * form.heads
        if form.keeps_places:
            pl.when(pl.program_id(1) == 0)(self._keep_places)

    def _keep_places(self) -> None:
        form = self._form
        for head in range(form.heads):

            def keep(chunk: Any, _: Any, head: int = head) -> None:
                self._places[head, chunk] = self._hashed(head, chunk, 0, form.length)

            jax.lax.fori_loop(0, form.length // form.chunk, keep, None)

    def keeps(self, row: Any, head: int, chunk: Any, start: int, size: int) -> jax.Array:
        """Return whether each probability is kept, [size, chunk], of the keys from ``start`` on."""
        if self._form.keeps_places:
            places = self._places[head, chunk, start : start + size]
        else:
            places = self._hashed(head, chunk, start, size)
        bits = _mix(self._row_keys[self._first_row + row] ^ places)
        return (bits ^ _int32(1 << 31)) >= _int32(round(self._form.rate * 2**32) ^ (1 << 31))

    def _hashed(self, head: int, chunk: Any, first: Any, size: int) -> jax.Array:
        """Return the hash of each probability's index in its row's [H, L, L], as [size, chunk]."""
        keys, queries = _positions(self._form, size, first, chunk)
        length = self._form.length
        return _mix(keys + queries * length + (self._first_head + head) * (length * length))


def _mix(x: jax.Array) -> jax.Array:
    """Return ``models.dropout.mix`` of int32."""
    x = x ^ jax.lax.shift_right_logical(x, jnp.int32(16))
    x = x * _int32(0x7FEB352D)
    x = x ^ jax.lax.shift_right_logical(x, jnp.int32(15))
    x = x * _int32(0x846CA68B)
    return x ^ jax.lax.shift_right_logical(x, jnp.int32(16))


def _int32(bits: int) -> Any:
    """Return the int32 with the bits of this unsigned number."""
    return jnp.int32(np.uint32(bits).astype(np.int32))
