"""Relative attention: scores of what is read and of how far away it is, over a row and a memory of the text before it.

Dai et al. 2019 (Transformer-XL), section 3.3: for a query q at position i and a key k at position j, with the vector
R of their distance i - j and two biases u and v, the score is the sum of four terms,

    q k + q (W R) + u k + v (W R),        computed as (q + u) k + (q + v) (W R),        over sqrt(head_dim).

Yang et al. 2019 (XLNet), section 2.5, add (q + s) e, with one vector e for a key of the query's segment, and another
for a key of another segment. A query that sees no key gets zeros. Queries, keys, values and W have no biases of their
own, and so has the output. No kernel computes these scores.

**Memory** (Dai et al. 2019, section 3.2). A batch may have ``past_states`` [B, N, M, D], what each of the N layers read
at the M positions before the row, and ``past_mask`` [B, M], 1 where such a position is there. Every query may read
them; no gradient flows into them. The encoder then returns both arrays as they are after the row.
"""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bert_jax.configuration import check_fields
from bert_jax.models import masks
from bert_jax.models.attention import AXES, Attention, Context, Relative
from bert_jax.models.config import Block, TransformerConfig
from bert_jax.models.dropout import RowRng, dropout
from bert_jax.models.gradients import spread
from bert_jax.models.kernels.plain import SITE
from bert_jax.models.masks import NEVER, Queries, Visible
from bert_jax.models.placement import constrain
from bert_jax.models.primitives import activation_dtype, normal, with_axes
from bert_jax.models.products import wide_product
from bert_jax.records import Batch, Feature

_FIRST = -(2**30)  # the order of memory: before any token


@dataclasses.dataclass(frozen=True)
class RelativeConfig(TransformerConfig):
    """The settings of an encoder with relative attention. Its ``Config`` has a field ``memory_length``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        where = "config.model"
        check_fields(self, where, "0 to 4,194,304 are allowed", "memory_length", sound=lambda n: 0 <= n <= 2**22)
        even = "an even number is needed: half of the vector of a distance are sines, half are cosines"
        check_fields(self, where, even, "hidden_size", sound=lambda n: n % 2 == 0)
        only = "'auto' and 'plain' are allowed: no kernel computes relative attention"
        check_fields(self, where, only, "attention_kernel", sound={"auto", "plain"}.__contains__)

    @property
    def num_parameters(self) -> int:
        table = self.vocab_size * self.hidden_size
        return table + sum(self._weights(block) + self.hidden_size**2 for block in self.blocks)

    def products(self, length: int) -> int:
        def attention(block: Block) -> int:
            """Return the multiply-adds of a position: two terms of the scores, and their product with the values."""
            keys = self.memory_length + length
            return 3 * self.hidden_size * (keys if block.window is None else min(keys, block.window + 1))

        of_memory = 2 * self.memory_length * self.hidden_size**2  # its keys and values
        return sum(length * (self._weights(block) + attention(block)) + of_memory for block in self.blocks)


def past_of(config: RelativeConfig) -> dict[str, Feature]:
    """Return the arrays of memory of a row; {} of a model without memory."""
    if not (length := config.memory_length):
        return {}
    states = Feature((config.num_layers, length, config.hidden_size), config.dtype)
    return {"past_states": states, "past_mask": Feature((length,), "int32")}


def past_after(batch: Batch, read: jax.Array, length: int | None = None) -> dict[str, jax.Array] | None:
    """Return the arrays of memory after a row; None if the batch has none.

    Args:
      read: [N, B, >= L, D] what each layer read.
      length: the positions of the row, from its first on, that enter the memory; None: all L.
    """
    if "past_states" not in batch:
        return None
    states, mask = batch["past_states"], batch["past_mask"]
    size, present = states.shape[2], batch["attention_mask"][:, :length]
    new = jnp.moveaxis(read[:, :, : present.shape[1]], 0, 1).astype(states.dtype)
    after = {
        "past_states": jnp.concatenate([states, new], axis=2)[:, :, -size:],
        "past_mask": jnp.concatenate([mask, present.astype(mask.dtype)], axis=1)[:, -size:],
    }
    return jax.lax.stop_gradient(after)  # type: ignore[no-any-return]


def sinusoids(first: int, last: int, width: int, dtype: jnp.dtype) -> jax.Array:
    """Return the vectors [1, R, width] of the distances from ``first`` down to ``last``: sines, then cosines.

    Entry i of both halves turns by 10000^(-2i / width) for each position.
    """
    wide = jnp.promote_types(dtype, jnp.float32)
    frequencies = jnp.asarray(10_000.0 ** (-np.arange(0, width, 2) / width), wide)
    angles = jnp.arange(first, last - 1, -1, dtype=wide)[:, None] * frequencies[None]
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1).astype(dtype)[None]


def with_distances(
    config: RelativeConfig,
    batch: Batch,
    context: Context,
    rng: RowRng | None,
    biases: tuple[jax.Array, jax.Array] | None = None,
) -> Context:
    """Return ``context`` with all that relative attention reads.

    Args:
      batch: its ``past_states`` and ``past_mask`` are read, ``query_positions`` [B, P] (``encoders.xlnet``), and
        ``token_type_ids``, if layers tell segments apart.
      biases: u and v [H, head_dim], if all layers share them.
    """
    memory, dtype = context.memory, activation_dtype(config)
    if memory is not None and memory.first is not None:  # new tokens: their keys are slots, and all are of one segment
        num_slots = memory.slots.shape[1]
        return context._replace(relative=Relative(sinusoids(num_slots - 1, 0, config.hidden_size, dtype), biases))
    past, places, length = batch.get("past_states"), batch.get("query_positions"), batch["input_ids"].shape[1]
    num_past = 0 if past is None else past.shape[2]
    distances = sinusoids(num_past + length - 1, 0 if config.causal else 1 - length, config.hidden_size, dtype)
    distances = dropout(distances, config.dropout_rate, rng and rng.of_one_row(), "distances")
    visible, alike = context.visible, None
    if past is not None or places is not None:
        visible = _visible(visible, batch.get("past_mask"), places)
    if config.blocks[0].relative == "own" and "token_type_ids" in batch:
        types = batch["token_type_ids"]
        keys = jnp.pad(types, ((0, 0), (num_past, 0)))
        alike = _with_places(types, places)[:, :, None] == keys[:, None, :]
    return context._replace(visible=visible, relative=Relative(distances, biases, past, alike, places))


def _visible(visible: Visible, past_mask: jax.Array | None, places: jax.Array | None) -> Visible:
    """Return who sees whom in a row with a memory, which all see, and with queries at ``places``.

    A query at a place sees what is before its token in the order; the token sees itself too.
    """
    (of_queries, of_keys), orders = visible.ids(), visible.orders()
    length, num_past = of_keys.shape[1], 0 if past_mask is None else past_mask.shape[1]
    row = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32)[None], of_keys.shape)
    order = order_of_queries = None
    if orders is not None:
        order = order_of_queries = jnp.broadcast_to(orders[1].astype(jnp.int32), of_keys.shape)
    if places is not None:
        assert order is not None, "a batch with query_positions has no order_ids"
        order_of_queries = jnp.concatenate([order, jnp.take_along_axis(order, places, axis=1) - 1], axis=1)
    if past_mask is not None:
        of_keys = jnp.concatenate([(past_mask > 0).astype(jnp.int32), of_keys], axis=1)
        before = ((0, 0), (num_past, 0))
        order = order if order is None else jnp.pad(order, before, constant_values=_FIRST)
    queries = Queries(_with_places(of_queries, places), _with_places(row, places), order_of_queries)
    keys = jnp.arange(-num_past, length, dtype=jnp.int32)[None]
    return Visible(of_keys, of_keys, visible.causal, order_ids=order, places=keys, queries=queries)


def _with_places(x: jax.Array, places: jax.Array | None) -> jax.Array:
    """Return x [B, L] of positions, followed by its values [B, P] at ``places``."""
    return x if places is None else jnp.concatenate([x, jnp.take_along_axis(x, places, axis=1)], axis=1)


def by_key(scores: jax.Array, num_keys: int) -> jax.Array:
    """Return scores [B, H, L, K] of queries and keys, for scores [B, H, L, R] of distances, the largest first.

    The last L keys are the tokens of the queries, so key j of query i has the distance K - L + i - j, in column
    L - 1 - i + j. With one more column, each row of the flat array begins one entry earlier than the row before (Dai et
    al. 2019, appendix B). A distance that has no column gives any score.
    """
    *rows, length, count = scores.shape
    flat = jnp.pad(scores, ((0, 0), (0, 0), (0, 0), (0, 1))).reshape(*rows, -1)
    return flat[..., length - 1 : length - 1 + length * count].reshape(*rows, length, count)[..., :num_keys]


def by_places(scores: jax.Array, queries: jax.Array, keys: jax.Array) -> jax.Array:
    """Return scores [B, H, Q, K] of queries and keys at these places [B or 1, Q or K], as ``by_key`` does."""
    columns = keys.shape[1] - 1 - (queries[:, :, None] - keys[:, None, :])
    return jnp.take_along_axis(scores, jnp.clip(columns, 0, scores.shape[3] - 1)[:, None], axis=3)


def by_rows(scores: jax.Array, places: jax.Array, length: int, num_keys: int) -> jax.Array:
    """Return scores [B, H, P, K] of queries at ``places`` [B, P] of a row of ``length``, as ``by_key`` does.

    The keys of a query are columns that follow each other, so the gradient writes no place of a row twice.
    """

    def keys(of_query: jax.Array, place: jax.Array) -> jax.Array:
        return jax.lax.dynamic_slice_in_dim(of_query, length - 1 - place, num_keys, axis=1)  # of [H, R]

    scores = jnp.pad(scores, ((0, 0), (0, 0), (0, 0), (0, max(0, num_keys + length - 1 - scores.shape[3]))))
    return jax.vmap(jax.vmap(keys, in_axes=(1, 0), out_axes=1))(scores, places)


class RelativeAttention(Attention):
    """Attention with the terms of relative attention.

    Parameters: ``query``, ``key``, ``value``, ``distance`` and ``output``, each with a kernel. Layers that do not share
    their biases have ``content_bias``, ``distance_bias`` and ``segment_bias`` [H, head_dim], and ``segment_embeddings``
    [2, H, head_dim] of the same and of another segment.
    """

    @property
    def _biases(self) -> bool:
        return False

    @nn.compact
    def __call__(self, x: jax.Array, context: Context, rng: RowRng | None) -> jax.Array:
        """Return [B, Q, D] for x [B, Q, D]; the last vectors may be queries alone (``Relative.places``)."""
        relative, visible = context.relative, context.visible.within(self.block.window)
        assert relative is not None, "the encoder of a layer with Block.relative gives no distances"
        read = x if relative.places is None else x[:, : -relative.places.shape[1]]
        if relative.past is not None:
            read = jnp.concatenate([jax.lax.stop_gradient(relative.past).astype(x.dtype), read], axis=1)
        query = constrain(self._factor("query", x), *AXES)
        key, value = (constrain(self._factor(name, read), *AXES) for name in ("key", "value"))
        distance = self._factor("distance", relative.distances)[0]  # [R, H, head_dim]
        if context.memory is not None:
            key, value = self._keep(key, value, context.memory)
        scores = self._scores(query, (key, distance), context)
        seen = jnp.broadcast_to(masks.seen(visible), scores.shape)
        weights = jnp.where(seen, jax.nn.softmax(jnp.where(seen, scores, NEVER)), 0.0)
        weights = dropout(weights, self.config.attention_dropout_rate, rng, SITE)
        return self._output(jnp.einsum("bhqk,bkhd->bqhd", weights.astype(value.dtype), value))

    def _scores(self, query: jax.Array, keys: tuple[jax.Array, jax.Array], context: Context) -> jax.Array:
        """Return scores [B, H, Q, K], float32 or wider; ``keys``: of tokens [B, K, H, head_dim], of distances."""
        relative, (key, distance) = context.relative, keys
        assert relative is not None
        wide = jnp.promote_types(query.dtype, jnp.float32)

        def product(bias: jax.Array, with_what: jax.Array, axes: str) -> jax.Array:
            biased = (query + spread(bias, query.shape, query.dtype)) / math.sqrt(query.shape[-1])
            return wide_product(biased, with_what.astype(query.dtype), wide, f"bqhd,{axes}")

        shared = relative.biases is not None
        content, far = relative.biases or (self._table("content_bias"), self._table("distance_bias"))
        scores = product(content, key, "bkhd->bhqk")
        scores += self._of_distances(product(far, distance, "rhd->bhqr"), context, key.shape[1])
        if not shared:
            bias, segments = self._table("segment_bias"), self._table("segment_embeddings", 2)
            if relative.alike is not None:
                of_segment = product(bias, segments, "shd->bhqs")
                scores += jnp.where(relative.alike[:, None], of_segment[..., :1], of_segment[..., 1:])
        return scores

    def _table(self, name: str, *rows: int) -> jax.Array:
        config, axes = self.config, (*(None for _ in rows), "heads", "head_dim")
        shape = (*rows, config.num_heads, config.head_dim)
        return self.param(name, with_axes(normal(config), *axes), shape, config.param_dtype)  # type: ignore[no-any-return]

    @staticmethod
    def _of_distances(scores: jax.Array, context: Context, num_keys: int) -> jax.Array:
        """Return scores [B, H, Q, K] by key, for scores [B, H, Q, R] of distances."""
        relative, visible = context.relative, context.visible
        assert relative is not None
        if context.memory is not None and context.memory.first is not None:  # keys are slots, not all of them filled
            assert visible.queries is not None
            assert visible.places is not None
            return by_places(scores, visible.queries.places, visible.places)
        if relative.places is None:
            return by_key(scores, num_keys)
        length = scores.shape[2] - relative.places.shape[1]
        of_tokens, of_queries = scores[:, :, :length], scores[:, :, length:]
        of_queries = by_rows(of_queries, relative.places, length, num_keys)
        return jnp.concatenate([by_key(of_tokens, num_keys), of_queries], axis=2)
