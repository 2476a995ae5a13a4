"""Attention masks: which keys a query sees, and the bias that is added to the scores."""

from __future__ import annotations

import flax.struct
import jax
import jax.numpy as jnp

HIDDEN = -10_000.0  # added to the score of a key that a query must not see; its float32 softmax is then exactly 0


@flax.struct.dataclass
class Visible:
    """The keys that each query sees: a key is visible if all of these rules allow it.

    Attributes:
      attention_mask: [B, L] 1 real, 0 padding.
      sequence_ids: [B, L] 0 padding; packed sequences are numbered from 1 and do not see each other. If None, there is
        one sequence per row.
      causal: whether the keys to the right of a query are hidden.
    """

    attention_mask: jax.Array
    sequence_ids: jax.Array | None = None
    causal: bool = flax.struct.field(pytree_node=False, default=False)


def bias(visible: Visible) -> jax.Array:
    """Return the bias that plain attention adds to its scores, [B, 1, 1 or L, L] float32."""
    ids = visible.sequence_ids
    added = padding_bias(visible.attention_mask) if ids is None else packed_bias(ids)
    return causal_bias(added) if visible.causal else added


def padding_bias(attention_mask: jax.Array, dtype: jax.typing.DTypeLike = jnp.float32) -> jax.Array:
    """Return the bias [B, 1, 1, L] of attention_mask [B, L] (1 real, 0 padding): every query sees every real key.

    A padded query sees the real keys too, so its output is defined but has no meaning. For the mask 1 1 1 0::

                 key 0  1  2  3
        query 0      0  0  0  H
              1      0  0  0  H       H = -10000
              2      0  0  0  H
              3      0  0  0  H
    """
    return jnp.where(attention_mask[:, None, None, :] > 0, 0.0, HIDDEN).astype(dtype)


def packed_bias(sequence_ids: jax.Array, dtype: jax.typing.DTypeLike = jnp.float32) -> jax.Array:
    """Return the bias [B, 1, L, L] of sequence_ids [B, L]: a query sees the keys of its own sequence.

    Id 0 is padding; packed sequences count from 1. For the ids 1 1 2 0::

                 key 0  1  2  3
        query 0      0  0  H  H
              1      0  0  H  H       H = -10000
              2      H  H  0  H
              3      H  H  H  H       (all alike: the softmax is uniform, the output has no meaning)
    """
    same = sequence_ids[:, None, :, None] == sequence_ids[:, None, None, :]
    return jnp.where(same & (sequence_ids[:, None, None, :] > 0), 0.0, HIDDEN).astype(dtype)


def causal_bias(bias: jax.Array) -> jax.Array:
    """Return ``bias`` with the keys to the right hidden, [B, 1, L, L].

    ``bias`` is a ``padding_bias`` or ``packed_bias`` [B, 1, 1 or L, L]. For the padding bias of the mask 1 1 1 0, and
    for the packed bias of the ids 1 1 2 2::

                 key 0  1  2  3                key 0  1  2  3
        query 0      0  H  H  H       query 0      0  H  H  H
              1      0  0  H  H             1      0  0  H  H       H = -10000
              2      0  0  0  H             2      H  H  0  H
              3      0  0  0  H             3      H  H  0  0

    Packed sequences follow each other in a row, so within a sequence a key to the right is a later position.
    """
    length = bias.shape[-1]
    places = jnp.arange(length)
    earlier = places[None, None, None, :] <= places[None, None, :, None]  # [1, 1, L, L]
    shape = (bias.shape[0], 1, length, length)
    return jnp.where(jnp.broadcast_to(earlier, shape), jnp.broadcast_to(bias, shape), HIDDEN).astype(bias.dtype)
