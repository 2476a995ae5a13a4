"""From token ids to the vectors that the first layer reads."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.errors import UserError
from bert_jax.models.config import ModelConfig
from bert_jax.models.dropout import RowRng, dropout
from bert_jax.models.primitives import LayerNorm, constrain, named, normal


class Embeddings(nn.Module):
    """Word + position + token type, layer norm, dropout (Devlin et al. 2019, figure 2)."""

    config: ModelConfig

    def setup(self) -> None:
        config, initializer = self.config, normal(self.config)
        tables = {
            "word_embeddings": (config.vocab_size, "vocab"),
            "position_embeddings": (config.max_length, None),
            "token_type_embeddings": (config.type_vocab_size, None),
        }
        for name, (rows, axis) in tables.items():
            shape = (rows, config.hidden_size)
            setattr(self, name, self.param(name, named(initializer, axis, "embed"), shape, config.param_dtype))
        self.layer_norm = LayerNorm(config)

    def __call__(
        self, input_ids: jax.Array, token_type_ids: jax.Array, position_ids: jax.Array | None, rng: RowRng | None
    ) -> jax.Array:
        """All ids [B, L] -> [B, L, D]. ``position_ids`` None counts from 0 in every row."""
        length = input_ids.shape[1]
        if length > self.config.max_length:
            raise UserError(f"rows of {length} positions exceed the model's {self.config.max_length}; shorten them")
        dtype = self.config.compute_dtype
        words = jnp.take(self.word_embeddings, input_ids, axis=0).astype(dtype)  # [B, L, D]
        if position_ids is None:
            positions = jnp.broadcast_to(self.position_embeddings[None, :length].astype(dtype), words.shape)
        else:
            positions = jnp.take(self.position_embeddings, position_ids, axis=0).astype(dtype)
        # As a product with one-hot rows: the gradient of a look-up in so small a table would add into two rows only.
        types = jax.nn.one_hot(token_type_ids, self.config.type_vocab_size, dtype=dtype)
        x = words + positions + types @ self.token_type_embeddings.astype(dtype)
        x = dropout(self.layer_norm(x), self.config.dropout_rate, rng, "embeddings")
        return constrain(x, "batch", "length", "embed")

    def decode(self, x: jax.Array) -> jax.Array:
        """x [..., D] -> its products with all word embeddings, [..., V] float32."""
        table = self.word_embeddings.astype(self.config.compute_dtype)
        return jnp.einsum("...d,vd->...v", x, table, preferred_element_type=self.config.param_dtype)
