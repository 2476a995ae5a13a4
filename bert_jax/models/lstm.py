"""One direction of an LSTM layer, the recurrent layer of ``models.bilstm`` and of recurrent encoders."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.models.primitives import uniform, with_axes


class Lstm(nn.Module):
    """One direction of a layer. Parameters and state are float32 or wider."""

    features: int
    reverse: bool  # whether it reads from the last token to the first

    @nn.compact
    def __call__(self, x: jax.Array, attention_mask: jax.Array) -> jax.Array:
        """Return the hidden states [B, L, F] of one direction for x [B, L, D]; F is ``features``."""
        size, dtype = self.features, jnp.promote_types(x.dtype, jnp.float32)
        initial = uniform(1.0 / math.sqrt(size))  # as torch.nn.LSTM
        kernel = self.param("kernel", with_axes(initial, "embed", "gates"), (x.shape[-1], 4 * size), dtype)
        recurrent = self.param("recurrent_kernel", with_axes(initial, None, "gates"), (size, 4 * size), dtype)
        bias = self.param("bias", with_axes(initial, None), (4 * size,), dtype)
        inputs = x.astype(dtype) @ kernel + bias[None, None, :]  # [B, L, 4F], for all places at once
        real = (attention_mask > 0)[..., None]  # [B, L, 1]
        zeros = jnp.zeros((x.shape[0], size), dtype)

        def step(state: tuple[jax.Array, jax.Array], here: tuple[jax.Array, jax.Array]) -> Any:
            hidden, cell = state
            gates, is_real = here
            i, f, g, o = jnp.split(gates + hidden @ recurrent, 4, axis=-1)
            new_cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
            new_hidden = jax.nn.sigmoid(o) * jnp.tanh(new_cell)
            kept = jnp.where(is_real, new_hidden, hidden), jnp.where(is_real, new_cell, cell)
            return kept, jnp.where(is_real, new_hidden, 0.0)

        by_place = jnp.swapaxes(inputs, 0, 1), jnp.swapaxes(real, 0, 1)
        _, outputs = jax.lax.scan(step, (zeros, zeros), by_place, reverse=self.reverse)
        return jnp.swapaxes(outputs, 0, 1).astype(x.dtype)
