"""Multi-head self-attention and the masks that it adds to its scores."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.models.config import ModelConfig
from bert_jax.models.dropout import RowRng, dropout
from bert_jax.models.primitives import Dense, constrain

SCORES = "bqhd,bkhd->bhqk"
HIDDEN = -10_000.0  # added to the score of a key that a query must not see; its float32 softmax is then exactly 0


def padding_bias(attention_mask: jax.Array, dtype: jax.typing.DTypeLike = jnp.float32) -> jax.Array:
    """[B, L] (1 real, 0 padding) -> [B, 1, 1, L]: every query sees every real key.

    A padded query sees them too, so its output is defined and means nothing. For the mask 1 1 1 0::

                 key 0  1  2  3
        query 0      0  0  0  H
              1      0  0  0  H       H = -10000
              2      0  0  0  H
              3      0  0  0  H
    """
    return jnp.where(attention_mask[:, None, None, :] > 0, 0.0, HIDDEN).astype(dtype)


def packed_bias(sequence_ids: jax.Array, dtype: jax.typing.DTypeLike = jnp.float32) -> jax.Array:
    """[B, L] (0 padding, packed pairs from 1) -> [B, 1, L, L]: a query sees the keys of its own pair.

    For the ids 1 1 2 0::

                 key 0  1  2  3
        query 0      0  0  H  H
              1      0  0  H  H       H = -10000
              2      H  H  0  H
              3      H  H  H  H       (all alike: the softmax is uniform, the output means nothing)
    """
    same = sequence_ids[:, None, :, None] == sequence_ids[:, None, None, :]
    return jnp.where(same & (sequence_ids[:, None, None, :] > 0), 0.0, HIDDEN).astype(dtype)


def causal_bias(bias: jax.Array) -> jax.Array:
    """``padding_bias`` or ``packed_bias`` [B, 1, 1 or L, L] -> [B, 1, L, L]: of those keys, the ones not to the right.

    For the padding bias of the mask 1 1 1 0, and for the packed bias of the ids 1 1 2 2::

                 key 0  1  2  3                key 0  1  2  3
        query 0      0  H  H  H       query 0      0  H  H  H
              1      0  0  H  H             1      0  0  H  H       H = -10000
              2      0  0  0  H             2      H  H  0  H
              3      0  0  0  H             3      H  H  0  0

    Pairs stand in a row one after another, so that a place to the right is a later position of the same pair.
    """
    length = bias.shape[-1]
    places = jnp.arange(length)
    earlier = places[None, None, None, :] <= places[None, None, :, None]  # [1, 1, L, L]
    shape = (bias.shape[0], 1, length, length)
    return jnp.where(jnp.broadcast_to(earlier, shape), jnp.broadcast_to(bias, shape), HIDDEN).astype(bias.dtype)


def attention_bias(config: ModelConfig, attention_mask: jax.Array, sequence_ids: jax.Array | None) -> jax.Array:
    """What a model of ``config`` adds to its scores, [B, 1, 1 or L, L]; ``sequence_ids`` None: a sequence a row."""
    bias = padding_bias(attention_mask) if sequence_ids is None else packed_bias(sequence_ids)
    return causal_bias(bias) if config.causal else bias


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def products(query: jax.Array, key: jax.Array, dtype: Any) -> jax.Array:
    """query [B, Q, H, head_dim], key [B, K, H, head_dim] -> scores [B, H, Q, K], accumulated and returned in ``dtype``.

    The gradients are products in the dtype of query and key: left to jax they would be slow ones of ``dtype``.
    """
    return jnp.einsum(SCORES, query, key, preferred_element_type=dtype)


def _products(query: jax.Array, key: jax.Array, dtype: Any) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return products(query, key, dtype), (query, key)


def _gradients(dtype: Any, factors: tuple[jax.Array, jax.Array], gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    del dtype
    _, backward = jax.vjp(functools.partial(jnp.einsum, SCORES), *factors)
    return backward(gradient.astype(factors[0].dtype))  # type: ignore[no-any-return]


products.defvjp(_products, _gradients)


class SelfAttention(nn.Module):
    """Scaled dot-product attention (Vaswani et al. 2017, section 3.2) with dropout on the probabilities.

    Who applies a model with the collection ``intermediates`` mutable finds them there, before dropout; others pay
    nothing for it.
    """

    config: ModelConfig

    @nn.compact
    def __call__(self, x: jax.Array, bias: jax.Array, rng: RowRng | None) -> jax.Array:
        """x [B, L, D], bias broadcastable to [B, H, L, L] -> [B, L, D]."""
        config = self.config
        embed = (("embed", config.hidden_size),)
        heads = (("heads", config.num_heads), ("head_dim", config.head_dim))
        query, key, value = (  # each [B, L, H, head_dim]
            constrain(Dense(config, embed, heads, name=name)(x), "batch", "length", "heads", "head_dim")
            for name in ("query", "key", "value")
        )
        scores = products(query / math.sqrt(config.head_dim), key, config.param_dtype)
        probabilities = jax.nn.softmax(scores + jnp.broadcast_to(bias, scores.shape))
        self.sow("intermediates", "probabilities", probabilities)
        probabilities = dropout(probabilities, config.attention_dropout_rate, rng, "attention_probabilities")
        mixed = jnp.einsum("bhqk,bkhd->bqhd", probabilities.astype(config.compute_dtype), value)
        return Dense(config, heads, embed, name="output")(mixed)
