"""Dropout whose random bits depend only on (seed, step, global row, site).

They do not depend on the mesh, on micro-batches or on whether layers are scanned: the bits of each element are a hash
of its own counter. XLA fuses the hash into the operation that uses it, and computes it again in the backward pass. So
no mask is stored and there is no generator state.
"""

from __future__ import annotations

import math
import zlib

import flax.struct
import jax
import jax.numpy as jnp


def mix(x: jax.Array) -> jax.Array:
    """Return the hash of each uint32 in ``x``.

    The hash is a bijection in which an input bit flips each output bit with probability about 1/2: "lowbias32" (C.
    Wellons, "Prospecting for hash functions", 2018).
    """
    x = x ^ (x >> 16)
    x = x * jnp.uint32(0x7FEB352D)
    x = x ^ (x >> 15)
    x = x * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


def _fold(key: jax.Array, data: jax.Array) -> jax.Array:
    """Return a new key made of ``key`` and ``data``, both uint32 and of one shape."""
    return mix(mix(key + jnp.uint32(0x9E3779B9)) ^ data)


@flax.struct.dataclass
class RowRng:
    """The random keys of the rows of a batch, or of the rows of a part of a batch.

    A row has the same id, and so the same randomness, wherever it is computed.
    """

    key: jax.Array  # [] uint32
    rows: jax.Array  # [B] uint32, the row's index within the global batch

    @classmethod
    def create(cls, seed: int | jax.Array, step: int | jax.Array, rows: jax.Array) -> RowRng:
        """Return the randomness of training step ``step`` of a run with ``seed``."""
        return cls(_fold(_fold(jnp.uint32(0), _uint32(seed)), _uint32(step)), rows.astype(jnp.uint32))

    @classmethod
    def of_content(cls, input_ids: jax.Array) -> RowRng:
        """Return the randomness of an evaluation, which follows from the tokens of a row alone, [B, L]."""
        ids = input_ids.astype(jnp.uint32)
        places = jax.lax.broadcasted_iota(jnp.uint32, ids.shape, 1)
        return cls(jnp.uint32(0), jnp.sum(mix(ids ^ mix(places)), axis=1, dtype=jnp.uint32))

    def site(self, name: str | int | jax.Array) -> RowRng:
        """Return the randomness of one place in the model, such as a layer; places may be nested."""
        number = zlib.crc32(name.encode()) if isinstance(name, str) else name
        return self.replace(key=_fold(self.key, _uint32(number)))  # type: ignore[attr-defined,no-any-return]

    def repeat(self, times: int) -> RowRng:
        """Return the randomness of a batch in which every row is replaced by ``times`` consecutive rows."""
        rows = jnp.repeat(self.rows, times) * jnp.uint32(times) + jnp.tile(
            jnp.arange(times, dtype=jnp.uint32), self.rows.shape[0]
        )
        return self.replace(rows=rows)  # type: ignore[attr-defined,no-any-return]

    def of_one_row(self) -> RowRng:
        """Return the randomness of an array [1, ...] that all rows read; it is the same in every part of a batch."""
        return self.replace(rows=jnp.zeros(1, jnp.uint32))  # type: ignore[attr-defined,no-any-return]

    def row_keys(self) -> jax.Array:
        """Return the key of each row, [B] uint32, from which the bits of its elements follow."""
        return _fold(jnp.broadcast_to(self.key, self.rows.shape), self.rows)

    def bits(self, shape: tuple[int, ...], index: jax.Array | None = None) -> jax.Array:
        """Return uniform uint32 of ``shape`` = [B, ...]. A row may have up to 2**32 elements.

        ``index`` (uint32, broadcast to ``shape``) is the number of each element within its row. It is needed where
        ``shape`` holds only some elements of a row.
        """
        assert shape[0] == self.rows.shape[0], f"{self.rows.shape[0]} row ids for a batch of {shape[0]}"
        row = jax.lax.broadcast_in_dim(self.row_keys(), shape, (0,))
        # The counter is hashed before it meets the row's key. Otherwise rows with close keys would share a stream.
        return mix(row ^ mix(_counter(shape) if index is None else jnp.broadcast_to(index, shape)))


def dropout(x: jax.Array, rate: float, rng: RowRng | None, site: str, index: jax.Array | None = None) -> jax.Array:
    """Return ``x`` [B, ...] with each element zeroed with probability ``rate``, the others scaled by 1 / (1 - rate).

    If ``rng`` is None, there is no dropout. ``index`` is needed if x is only a part of each row (``RowRng.bits``).
    """
    if rng is None or rate == 0.0:
        return x
    keep = rng.site(site).bits(x.shape, index) >= jnp.uint32(round(rate * 2**32))
    return jnp.where(keep, x / (1.0 - rate), jnp.zeros_like(x))


def _counter(shape: tuple[int, ...]) -> jax.Array:
    """Return each element's index within its row, uint32 of ``shape``, computed so that any axis can be sharded."""
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    terms = [
        jax.lax.broadcasted_iota(jnp.uint32, shape, axis) * jnp.uint32(strides[axis]) for axis in range(1, len(shape))
    ]
    return sum(terms, start=jnp.zeros(shape, jnp.uint32))


def _uint32(x: int | jax.Array) -> jax.Array:
    return jnp.uint32(x & 0xFFFFFFFF) if isinstance(x, int) else x.astype(jnp.uint32)
