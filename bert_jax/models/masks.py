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
      window: a key is hidden if it is more than so many positions away; None: none is hidden for that reason.
    """

    attention_mask: jax.Array
    sequence_ids: jax.Array | None = None
    causal: bool = flax.struct.field(pytree_node=False, default=False)
    window: int | None = flax.struct.field(pytree_node=False, default=None)

    def within(self, window: int | None) -> Visible:
        """Return the same rules with ``window``."""
        return self.replace(window=window)  # type: ignore[attr-defined,no-any-return]

    def ids(self) -> tuple[jax.Array, jax.Array]:
        """Return ids of queries and of keys, each [B, L] int32, that say the same as the mask and the sequences.

        A query sees the keys of its own id, unless ``causal`` hides them. No query sees a key of id 0.
        """
        if self.sequence_ids is not None:
            ids = self.sequence_ids.astype(jnp.int32)
            return ids, ids
        keys = (self.attention_mask > 0).astype(jnp.int32)
        return jnp.ones_like(keys), keys


def bias(visible: Visible) -> jax.Array:
    """Return what plain attention adds to its scores, [B, 1, 1 or L, L] float32: 0 where a query sees a key, else H.

    For the mask 1 1 1 0, for the packed sequences 1 1 2 0, and for the packed sequences 1 1 2 2 in a causal model::

                 key 0  1  2  3         0  1  2  3         0  1  2  3
        query 0      0  0  0  H         0  0  H  H         0  H  H  H
              1      0  0  0  H         0  0  H  H         0  0  H  H       H = -10000
              2      0  0  0  H         H  H  0  H         H  H  0  H
              3      0  0  0  H         H  H  H  H         H  H  0  0

    The output of a padded query is defined, but has no meaning. Packed sequences follow each other in a row, so within
    a sequence a key to the right is a later position.
    """
    ids = visible.sequence_ids
    if ids is None:
        seen = visible.attention_mask[:, None, None, :] > 0
    else:
        seen = (ids[:, None, :, None] == ids[:, None, None, :]) & (ids[:, None, None, :] > 0)
    distance = jnp.arange(seen.shape[-1])[None, None, None, :] - jnp.arange(seen.shape[-1])[None, None, :, None]
    if visible.causal:
        seen &= distance <= 0
    if visible.window is not None:
        seen &= jnp.abs(distance) <= visible.window
    return jnp.where(seen, 0.0, HIDDEN).astype(jnp.float32)
