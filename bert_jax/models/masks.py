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
class Queries:
    """The queries of a layer whose keys are other tokens, such as the tokens of another sequence or kept tokens.

    Attributes:
      ids: [B, Q] int32: a query sees the keys of its id.
      places: [B or 1, Q] int32: the position of each query, from which distances and ``Visible.causal`` are counted.
      order_ids: [B or 1, Q] int32, if the keys have ``Visible.order_ids``.
    """

    ids: jax.Array
    places: jax.Array
    order_ids: jax.Array | None = None


@flax.struct.dataclass
class Visible:
    """The keys that each query sees: a key is visible if all of these rules allow it.

    Attributes:
      attention_mask: [B, K] 1 real, 0 padding.
      sequence_ids: [B, K] 0 padding; packed sequences are numbered from 1 and do not see each other. If None, there is
        one sequence per row.
      order_ids: [B or 1, K] int32: a query sees the keys whose number is not larger than the query's number. If None,
        the order hides nothing. Equal numbers see each other, growing numbers see what came before, falling numbers
        what comes after; a source of zeros and a target that counts from 1 is the mask of a prefix (Dong et al. 2019,
        section 2.3, "sequence-to-sequence").
      places: [B or 1, K] int32: the position of each key. If None, keys are in the order of the row.
      queries: the queries, if they are other tokens than the keys. If None, the keys are the queries too, and K is L.
      causal: whether the keys to the right of a query are hidden.
      window: the number of positions that a query sees to each side of its position. If None, it sees any distance.
    """

    attention_mask: jax.Array
    sequence_ids: jax.Array | None = None
    causal: bool = flax.struct.field(pytree_node=False, default=False)
    window: int | None = flax.struct.field(pytree_node=False, default=None)
    order_ids: jax.Array | None = None
    places: jax.Array | None = None
    queries: Queries | None = None

    def within(self, window: int | None) -> Visible:
        """Return the same rules with ``window``."""
        return self.replace(window=window)  # type: ignore[attr-defined,no-any-return]

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise UserError(
                f"a window of attention is {self.window}; it is the number of positions that a query sees to each "
                "side: 1 or more, or None for any distance"
            )

    def ids(self) -> Pair:
        """Return ids of queries [B, Q] and of keys [B, K], int32, that say the same as the mask and the sequences.

        A query sees the keys of the query's id, unless another rule hides them. No query sees a key of id 0.
        """
        if self.sequence_ids is not None:
            keys = self.sequence_ids.astype(jnp.int32)
            return (keys if self.queries is None else self.queries.ids), keys
        keys = (self.attention_mask > 0).astype(jnp.int32)
        return (jnp.ones_like(keys) if self.queries is None else self.queries.ids), keys

    def orders(self) -> Pair | None:
        """Return the order of queries [B or 1, Q] and of keys [B or 1, K]; None if the order hides nothing."""
        if self.order_ids is None:
            return None
        of_queries = self.order_ids if self.queries is None else self.queries.order_ids
        assert of_queries is not None, "the keys have an order, and the queries have none"
        return of_queries, self.order_ids

    @property
    def is_plain(self) -> bool:
        """Whether only ids, ``causal`` and ``window`` say what is visible: the rules that kernels know."""
        return self.order_ids is None and self.queries is None


def bias(visible: Visible) -> jax.Array:
    """Return what plain attention adds to its scores, [B, 1, 1 or Q, K] float32: 0 where a query sees a key, else H.

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

    For the order 0 0 1 2 0, whose last token is padding: a source of two tokens and its target::

                 key 0  1  2  3  4
        query 0      0  0  H  H  H
              1      0  0  H  H  H
              2      0  0  0  H  H
              3      0  0  0  0  H
              4      0  0  H  H  H

    The output of a padded query is defined, but has no meaning. Packed sequences follow each other in a row, so within
    a sequence a key to the right is a later position, and distances are counted in the row.
    """
    return _bias(seen(visible))


def seen(visible: Visible) -> jax.Array:
    """Return whether each query sees each key, bool [B, 1, 1 or Q, K]."""
    ids, orders = visible.sequence_ids, visible.orders()
    if ids is None and visible.queries is None:
        same = visible.attention_mask[:, None, None, :] > 0
    else:
        same = _same(*(x[:, None] for x in visible.ids()))
    in_row = jnp.arange(same.shape[-1])[None]
    keys = in_row if visible.places is None else visible.places
    queries = keys if visible.queries is None else visible.queries.places
    return _seen(visible, same, (queries[:, None], keys[:, None]), orders and _heads_axis(orders))


def bias_between(visible: Visible, ids: Pair, places: Pair, orders: Pair | None = None) -> jax.Array:
    """Return the part of ``bias`` between some queries and some keys, [B, 1, ..., Q, K] float32.

    Args:
      ids: the ids of the queries [B, 1, ..., Q] and of the keys [B, 1, ..., K], from ``Visible.ids``.
      places: the positions of the queries [..., Q] and of the keys [..., K].
      orders: the order of the queries [B or 1, 1, ..., Q] and of the keys [B or 1, 1, ..., K], from ``Visible.orders``.
    """
    queries, keys = places
    return _bias(_seen(visible, _same(*ids), (queries[None, None], keys[None, None]), orders))


def _heads_axis(pair: Pair) -> Pair:
    return pair[0][:, None], pair[1][:, None]


def _same(queries: jax.Array, keys: jax.Array) -> jax.Array:
    """Return whether queries and keys of these ids are of one sequence, bool [..., Q, K]."""
    return (queries[..., :, None] == keys[..., None, :]) & (keys[..., None, :] > 0)


def _seen(visible: Visible, seen: jax.Array, places: Pair, orders: Pair | None) -> jax.Array:
    queries, keys = places[0][..., :, None], places[1][..., None, :]
    if orders is not None:
        seen &= orders[1][..., None, :] <= orders[0][..., :, None]
    if visible.causal:
        seen &= keys <= queries
    if visible.window is not None:
        seen &= jnp.abs(keys - queries) <= visible.window
    return seen


def _bias(seen: jax.Array) -> jax.Array:
    return jnp.where(seen, 0.0, HIDDEN).astype(jnp.float32)
