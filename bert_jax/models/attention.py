"""Multi-head self-attention."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.models.config import ModelConfig
from bert_jax.models.dropout import RowRng, dropout
from bert_jax.models.masks import Visible, bias
from bert_jax.models.primitives import Dense, constrain

SCORES = "bqhd,bkhd->bhqk"


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def products(query: jax.Array, key: jax.Array, dtype: Any) -> jax.Array:
    """Return scores [B, H, Q, K] of query [B, Q, H, head_dim] and key [B, K, H, head_dim], accumulated in ``dtype``.

    The gradients are computed in the dtype of query and key, because jax's own rule would use ``dtype``, which is slow.
    """
    return jnp.einsum(SCORES, query, key, preferred_element_type=dtype)


def _products(query: jax.Array, key: jax.Array, dtype: Any) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return products(query, key, dtype), (query, key)


def _gradients(dtype: Any, factors: tuple[jax.Array, jax.Array], gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    del dtype
    _, backward = jax.vjp(functools.partial(jnp.einsum, SCORES), *factors)
    return backward(gradient.astype(factors[0].dtype))  # type: ignore[no-any-return]


products.defvjp(_products, _gradients)


def attend(
    query: jax.Array, key: jax.Array, value: jax.Array, visible: Visible, rate: float, rng: RowRng | None
) -> jax.Array:
    """Return scaled dot-product attention, with dropout on the probabilities (Vaswani et al. 2017, section 3.2).

    Query, key, value and the result are [B, L, H, head_dim]. To use a faster kernel, replace only this function.
    """
    weights = dropout(probabilities(query, key, visible), rate, rng, "attention_probabilities")
    return jnp.einsum("bhqk,bkhd->bqhd", weights.astype(value.dtype), value)


def probabilities(query: jax.Array, key: jax.Array, visible: Visible) -> jax.Array:
    """Return how much each query attends to each key, [B, H, L, L] float32 or wider, without dropout."""
    wide = jnp.promote_types(query.dtype, jnp.float32)
    scores = products(query / math.sqrt(query.shape[-1]), key, wide)
    return jax.nn.softmax(scores + jnp.broadcast_to(bias(visible), scores.shape))


class SelfAttention(nn.Module):
    """Projects to queries, keys and values, applies ``attend``, and projects back.

    If the model is applied with a mutable collection ``intermediates``, the probabilities are also stored in it.
    """

    config: ModelConfig

    @nn.compact
    def __call__(self, x: jax.Array, visible: Visible, rng: RowRng | None) -> jax.Array:
        """Return [B, L, D] for x [B, L, D]."""
        config = self.config
        embed = (("embed", config.hidden_size),)
        heads = (("heads", config.num_heads), ("head_dim", config.head_dim))
        query, key, value = (  # each [B, L, H, head_dim]
            constrain(Dense(config, embed, heads, name=name)(x), "batch", "length", "heads", "head_dim")
            for name in ("query", "key", "value")
        )
        if self.is_mutable_collection("intermediates"):
            self.sow("intermediates", "probabilities", probabilities(query, key, visible))
        mixed = attend(query, key, value, visible, config.attention_dropout_rate, rng)
        return Dense(config, heads, embed, name="output")(mixed)
