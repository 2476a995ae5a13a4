"""The stack of Transformer layers."""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.models.attention import SelfAttention, attention_bias
from bert_jax.models.config import ModelConfig
from bert_jax.models.dropout import RowRng, dropout
from bert_jax.models.embeddings import Embeddings
from bert_jax.models.primitives import ACTIVATIONS, Dense, LayerNorm, constrain

REMAT_POLICIES = {
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "full": jax.checkpoint_policies.nothing_saveable,
}


class Mlp(nn.Module):
    """The position-wise feed-forward network, without dropout inside."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        config = self.config
        embed, mlp = (("embed", config.hidden_size),), (("mlp", config.mlp_dim),)
        hidden = ACTIVATIONS[config.activation](Dense(config, embed, mlp, name="input")(x))
        return Dense(config, mlp, embed, name="output")(constrain(hidden, "batch", "length", "mlp"))


class Layer(nn.Module):
    """One Transformer layer, normalised after each residual sum."""

    config: ModelConfig

    @nn.compact
    def __call__(
        self, x: jax.Array, bias: jax.Array, rng: RowRng | None, index: int | jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """x [B, L, D] -> the layer's output, twice: to go on with, and to keep."""
        config = self.config
        rng = rng and rng.site(index)
        attended = SelfAttention(config, name="attention")(x, bias, rng)
        attended = dropout(attended, config.dropout_rate, rng, "attention_output")
        x = LayerNorm(config, name="attention_layer_norm")(x + attended)
        expanded = dropout(Mlp(config, name="mlp")(x), config.dropout_rate, rng, "mlp_output")
        x = LayerNorm(config, name="mlp_layer_norm")(x + expanded)
        x = constrain(x, "batch", "length", "embed")
        return x, x


class BertEncoder(nn.Module):
    """Embeddings and ``num_layers`` layers."""

    config: ModelConfig

    def setup(self) -> None:
        config = self.config
        self.embeddings = Embeddings(config)
        layer: Any = Layer
        if config.remat != "none":
            # Inside a scan the loop itself keeps XLA from merging the recomputation with the forward pass.
            layer = nn.remat(Layer, policy=REMAT_POLICIES[config.remat], prevent_cse=config.layers == "unrolled")
        if config.layers == "unrolled":
            self.layer = [layer(config) for _ in range(config.num_layers)]
        else:
            self.layers = nn.scan(
                layer,
                variable_axes={"params": 0},
                split_rngs={"params": True},
                in_axes=(nn.broadcast, nn.broadcast, 0),
                length=config.num_layers,
                metadata_params={nn.PARTITION_NAME: "layers"},
            )(config)

    def __call__(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        attention_mask: jax.Array,
        position_ids: jax.Array | None = None,
        sequence_ids: jax.Array | None = None,
        rng: RowRng | None = None,
        hidden_states: Literal["last", "all"] = "last",
    ) -> jax.Array:
        """Read a batch; every id array is [B, L].

        Args:
          sequence_ids: rows that hold several pairs: 0 is padding, pairs count from 1 and do not see each other.
            None: one sequence a row, padded where ``attention_mask`` is 0.
          rng: None means no dropout.

        Returns:
          [B, L, D] of the last layer, or with "all" [N + 1, B, L, D] from the embeddings up.
        """
        bias = attention_bias(self.config, attention_mask, sequence_ids)
        x = self.embeddings(input_ids, token_type_ids, position_ids, rng)
        first = x
        if self.config.layers == "unrolled":
            kept = []
            for index, layer in enumerate(self.layer):
                x, output = layer(x, bias, rng, index)
                kept.append(output)
            return x if hidden_states == "last" else jnp.stack([first, *kept])
        x, outputs = self.layers(x, bias, rng, jnp.arange(self.config.num_layers, dtype=jnp.uint32))
        return x if hidden_states == "last" else jnp.concatenate([first[None], outputs])
