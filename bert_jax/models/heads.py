"""What stands on top of the encoder in pretraining."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.models.config import ModelConfig
from bert_jax.models.primitives import ACTIVATIONS, Dense, LayerNorm, gather, named


class Pooler(nn.Module):
    """tanh of a dense layer on the vectors at the ``[CLS]`` positions."""

    config: ModelConfig

    @nn.compact
    def __call__(self, sequence: jax.Array, cls_positions: jax.Array) -> jax.Array:
        """sequence [B, L, D], cls_positions [B, K] -> [B, K, D]."""
        config, size = self.config, self.config.hidden_size
        x = gather(sequence, cls_positions)
        x = jnp.tanh(Dense(config, (("embed", size),), ((None, size),), config.param_dtype, name="dense")(x))
        return x.astype(config.compute_dtype)


def summary_positions(config: ModelConfig, attention_mask: jax.Array) -> jax.Array:
    """Which vector of a sequence stands for the whole of it, [B, 1], from attention_mask [B, L].

    That at ``[CLS]``, the first; in a causal model, where ``[CLS]`` sees nothing but itself, the last real one.
    """
    if config.causal:
        length = attention_mask.shape[1]
        return jnp.max(jnp.where(attention_mask > 0, jnp.arange(length)[None, :], 0), axis=1, keepdims=True)
    return jnp.zeros((attention_mask.shape[0], 1), jnp.int32)


class MaskedLmHead(nn.Module):
    """Dense, activation and layer norm on the masked positions; the word embeddings decode, with a bias of its own."""

    config: ModelConfig

    @nn.compact
    def __call__(self, sequence: jax.Array, masked_positions: jax.Array) -> tuple[jax.Array, jax.Array]:
        """sequence [B, L, D], masked_positions [B, P] -> what the word embeddings decode [B, P, D], bias [V]."""
        config, size = self.config, self.config.hidden_size
        x = gather(sequence, masked_positions)
        x = ACTIVATIONS[config.activation](Dense(config, (("embed", size),), ((None, size),), name="transform")(x))
        x = LayerNorm(config, name="layer_norm")(x)
        bias = self.param(
            "output_bias", named(nn.initializers.zeros, "vocab"), (config.vocab_size,), config.param_dtype
        )
        return x, bias


class NextSentenceHead(nn.Module):
    """Label 0: the second segment is the true next one; 1: a random one."""

    config: ModelConfig

    @nn.compact
    def __call__(self, pooled: jax.Array) -> jax.Array:
        """pooled [B, K, D] -> logits [B, K, 2] float32."""
        config, embed = self.config, (("embed", self.config.hidden_size),)
        return Dense(config, embed, ((None, 2),), config.param_dtype, name="dense")(pooled)  # type: ignore[no-any-return]
