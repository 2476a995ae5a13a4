"""Attention masks: which keys a query sees, and the bias that is added to the scores."""

from __future__ import annotations

from typing import TypeAlias

import flax.struct
import jax
import jax.numpy as jnp

from bert_jax.errors import UserError

NEVER = -1e30  # takes the place of a score that no softmax may see
HIDDEN = -10_000.0  # added to the score of a key that a query must not see; its float32 softmax is then exactly 0
Pair: TypeAlias = tuple[jax.Array, jax.Array]  # something of queries and of keys


@flax.struct.dataclass
class Visible:
    """The keys that each query sees: a key is visible if all of these rules allow it.

    Attributes:
      attention_mask: [B, L] 1 real, 0 padding.
      sequence_ids: [B, L] 0 padding; packed sequences are numbered from 1 and do not see each other. If None, there is
        one sequence per row.
      causal: whether the keys to the right of a query are hidden.
      window: the number of positions that a query sees to each side of its position. If None, it sees any distance.
    """

    attention_mask: jax.Array
    sequence_ids: jax.Array | None = None
    causal: bool = flax.struct.field(pytree_node=False, default=False)
    window: int | None = flax.struct.field(pytree_node=False, default=None)

    def within(self, window: int | None) -> Visible:
        """Return the same rules with ``window``."""
        return self.replace(window=window)  # type: ignore[attr-defined,no-any-return]

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise UserError(
                f"a window of attention is {self.window}; it is the number of positions that a query sees to each "
                "side: 1 or more, or None for any distance"
            )

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
    """Return what plain attention adds to its scores, [B, 1, 1 or L, L] float32: 0 where a query sees a key, else H.

    For the mask 1 1 1 0, for the packed sequences 1 1 2 0, and for the packed sequences 1 1 2 2 in a causal model::

                 key 0  1  2  3         0  1  2  3         0  1  2  3
        query 0      0  0  0  H         0  0  H  H         0  H  H  H
              1      0  0  0  H         0  0  H  H         0  0  H  H       H = -10000
              2      0  0  0  H         H  H  0  H         H  H  0  H
              3      0  0  0  H         H  H  H  H         H  H  0  0

    With a window of 1: for the mask 1 1 1 1 0, for the packed sequences 1 1 1 2 2, and for these in a causal model::

                 key 0  1  2  3  4         0  1  2  3  4         0  1  2  3  4
        query 0      0  0  H  H  H         0  0  H  H  H         0  H  H  H  H
              1      0  0  0  H  H         0  0  0  H  H         0  0  H  H  H
              2      H  0  0  0  H         H  0  0  H  H         H  0  0  H  H
              3      H  H  0  0  H         H  H  H  0  0         H  H  H  0  H
              4      H  H  H  0  H         H  H  H  0  0         H  H  H  0  0

    The output of a padded query is defined, but has no meaning. Packed sequences follow each other in a row, so within
    a sequence a key to the right is a later position, and distances are counted in the row.
    """
    ids = visible.sequence_ids
    seen = visible.attention_mask[:, None, None, :] > 0 if ids is None else _same(ids[:, None], ids[:, None])
    places = jnp.arange(seen.shape[-1])[None, None]
    return _bias(visible, seen, (places, places))


def bias_between(visible: Visible, ids: Pair, places: Pair) -> jax.Array:
    """Return the part of ``bias`` between some queries and some keys, [B, 1, ..., Q, K] float32.

    Args:
      ids: the ids of the queries [B, 1, ..., Q] and of the keys [B, 1, ..., K], from ``Visible.ids``.
      places: the positions of the queries [..., Q] and of the keys [..., K].
    """
    queries, keys = places
    return _bias(visible, _same(*ids), (queries[None, None], keys[None, None]))


def _same(queries: jax.Array, keys: jax.Array) -> jax.Array:
    """Return whether queries and keys of these ids are of one sequence, bool [..., Q, K]."""
    return (queries[..., :, None] == keys[..., None, :]) & (keys[..., None, :] > 0)


def _bias(visible: Visible, seen: jax.Array, places: Pair) -> jax.Array:
    queries, keys = places[0][..., :, None], places[1][..., None, :]
    if visible.causal:
        seen &= keys <= queries
    if visible.window is not None:
        seen &= jnp.abs(keys - queries) <= visible.window
    return jnp.where(seen, 0.0, HIDDEN).astype(jnp.float32)
