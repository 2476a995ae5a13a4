"""One direction of an LSTM layer, the recurrent layer of ``models.bilstm`` and of recurrent encoders."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.models.primitives import uniform, with_axes


class State(NamedTuple):
    """The state of a direction between two tokens, float32 or wider.

    Attributes:
      hidden: [B, P] the vector of the last token that was read; zeros before the first token.
      cell: [B, F] the cell.
    """

    hidden: jax.Array
    cell: jax.Array


class Lstm(nn.Module):
    """One direction of a layer. Parameters and state are float32 or wider.

    Parameters: ``kernel`` [D, 4F], ``recurrent_kernel`` [P, 4F], ``bias`` [4F]; with a projection ``projection``
    [F, P] (Sak et al. 2014, section 2.2), as ``torch.nn.LSTM`` has it with ``proj_size``.

    Attributes:
      features: F, the width of the cell.
      reverse: whether it reads from the last token to the first.
      projection: P, the width to which the vectors are projected. If None, there is no projection, and P is F.
      clip: the largest absolute value of the cell and of the projected vectors, as in bilm-tf. If None, any value.
      forget_bias: what is added to the initial bias of the forget gate (Jozefowicz et al. 2015, section 2.2).
    """

    features: int
    reverse: bool
    projection: int | None = None
    clip: float | None = None
    forget_bias: float = 0.0

    def __call__(self, x: jax.Array, attention_mask: jax.Array) -> jax.Array:
        """Return the vectors [B, L, P] of one direction for x [B, L, D]; P is ``features`` without a projection."""
        return self.run(x, attention_mask)[0]

    @nn.compact
    def run(
        self, x: jax.Array, attention_mask: jax.Array, initial: State | None = None, begins: jax.Array | None = None
    ) -> tuple[jax.Array, State]:
        """Return the vectors [B, L, P] for x [B, L, D], and the state after the row.

        Args:
          attention_mask: [B, L]; a position where it is 0 is skipped: its vector is 0 and the state stays.
          initial: the state before the row. If None, zeros.
          begins: [B, L] bool, where the state becomes zeros before the token is read. If None, nowhere.
        """
        size, width, dtype = self.features, self.projection or self.features, jnp.promote_types(x.dtype, jnp.float32)
        initialise = uniform(1.0 / math.sqrt(size))  # as torch.nn.LSTM
        kernel = self.param("kernel", with_axes(initialise, "embed", "gates"), (x.shape[-1], 4 * size), dtype)
        axes = ("embed" if self.projection else None, "gates")
        recurrent = self.param("recurrent_kernel", with_axes(initialise, *axes), (width, 4 * size), dtype)
        bias = self.param("bias", with_axes(self._bias, None), (4 * size,), dtype)
        project = None
        if self.projection:
            project = self.param("projection", with_axes(initialise, "gates", "embed"), (size, width), dtype)
        inputs = x.astype(dtype) @ kernel + bias[None, None, :]  # [B, L, 4F], for all places at once
        real = (attention_mask > 0)[..., None]  # [B, L, 1]
        zeros = State(jnp.zeros((x.shape[0], width), dtype), jnp.zeros((x.shape[0], size), dtype))

        def step(state: State, here: tuple[jax.Array, ...]) -> Any:
            gates, is_real, *is_new = here
            hidden, cell = (jnp.where(is_new[0], 0.0, one) for one in state) if is_new else state
            i, f, g, o = jnp.split(gates + hidden @ recurrent, 4, axis=-1)
            new_cell = self._clipped(jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g))
            new_hidden = jax.nn.sigmoid(o) * jnp.tanh(new_cell)
            if project is not None:
                new_hidden = self._clipped(new_hidden @ project)
            kept = State(jnp.where(is_real, new_hidden, hidden), jnp.where(is_real, new_cell, cell))
            return kept, jnp.where(is_real, new_hidden, 0.0)

        by_row = (inputs, real) if begins is None else (inputs, real, begins[..., None])
        by_place = tuple(jnp.swapaxes(one, 0, 1) for one in by_row)
        first = zeros if initial is None else State(*(one.astype(dtype) for one in initial))
        last, outputs = jax.lax.scan(step, first, by_place, reverse=self.reverse)
        return jnp.swapaxes(outputs, 0, 1).astype(x.dtype), last

    def _bias(self, key: Any, shape: Any, dtype: Any) -> jax.Array:
        bias, size = uniform(1.0 / math.sqrt(self.features))(key, shape, dtype), self.features
        return bias.at[size : 2 * size].add(self.forget_bias) if self.forget_bias else bias

    def _clipped(self, x: jax.Array) -> jax.Array:
        return x if self.clip is None else jnp.clip(x, -self.clip, self.clip)
