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
      window: the most positions between a query and a key that it sees, to either side. If None, there is no limit.
    """

    attention_mask: jax.Array
    sequence_ids: jax.Array | None = None
    causal: bool = flax.struct.field(pytree_node=False, default=False)
    window: int | None = flax.struct.field(pytree_node=False, default=None)

    def ids(self) -> tuple[jax.Array, jax.Array]:
        """Return ids of queries and of keys, each [B, L] int32, that say the same as the mask and the sequences.

        A query sees the keys of its own id, unless ``causal`` or ``window`` hides them. No query sees a key of id 0.
        """
        if self.sequence_ids is not None:
            ids = self.sequence_ids.astype(jnp.int32)
            return ids, ids
        keys = (self.attention_mask > 0).astype(jnp.int32)
        return jnp.ones_like(keys), keys


def bias(visible: Visible) -> jax.Array:
    """Return the bias that plain attention adds to its scores, [B, 1, 1 or L, L] float32."""
    ids = visible.sequence_ids
    added = padding_bias(visible.attention_mask) if ids is None else packed_bias(ids)
    added = causal_bias(added) if visible.causal else added
    return added if visible.window is None else window_bias(added, visible.window)


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
    places = jnp.arange(bias.shape[-1])
    return _hidden_unless(places[None, :] <= places[:, None], bias)


def window_bias(bias: jax.Array, window: int) -> jax.Array:
    """Return ``bias`` with the keys more than ``window`` positions away hidden, [B, 1, L, L].

    For the padding bias of the mask 1 1 1 0 and a window of 1::

                 key 0  1  2  3
        query 0      0  0  H  H
              1      0  0  0  H       H = -10000
              2      H  0  0  H
              3      H  H  0  H
    """
    places = jnp.arange(bias.shape[-1])
    return _hidden_unless(jnp.abs(places[None, :] - places[:, None]) <= window, bias)


def _hidden_unless(allowed: jax.Array, bias: jax.Array) -> jax.Array:
    """Return ``bias`` [B, 1, 1 or L, L] as [B, 1, L, L], with H where ``allowed`` [L, L] does not hold."""
    shape = (bias.shape[0], 1, *allowed.shape)
    allowed = jax.lax.broadcast_in_dim(allowed, shape, (2, 3))
    return jnp.where(allowed, jnp.broadcast_to(bias, shape), HIDDEN).astype(bias.dtype)
