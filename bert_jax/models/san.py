"""The stochastic answer network: a head that reads a pair of texts in several steps (Liu et al. 2018, 1804.07888).

MT-DNN predicts the labels of pairs with it (Liu et al. 2019, section 3).
"""

from __future__ import annotations

import math
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.models.dropout import RowRng, dropout
from bert_jax.models.heads import Head, Outputs
from bert_jax.models.masks import NEVER
from bert_jax.models.primitives import Dense, uniform, with_axes
from bert_jax.records import Batch


class StochasticAnswer(Head):
    """Predicts a label of (premise, hypothesis) from their vectors, which come from one sequence of both.

    The first state s is a weighted mean of the hypothesis. In each step, s chooses a weighted mean x of the premise, by
    scores p (W s + b) of its vectors p; a dense layer on [s, x, |s - x|, s * x] predicts the label; and a GRU that
    reads x makes the next s. The prediction is the mean of the probabilities of the steps. In training, a step is left
    out of it with the probability ``step_dropout_rate``, but one step of each row, drawn by chance, always stays.

    The premise is the first segment with its [CLS] and [SEP], the hypothesis the second with its [SEP]. MT-DNN's code
    (v0.1, module/san.py) computes the same, with two differences: there the hypothesis comes first, and a mean over
    left-out steps is not divided by the number of steps that stay, which no softmax or cross-entropy sees.

    Parameters: ``pooling`` [D, 1], ``attention`` [D, D], ``dense`` [4D, K], each with a bias, and, as in
    ``torch.nn.GRUCell`` but transposed, ``gru/{kernel, recurrent_kernel [D, 3D], bias, recurrent_bias [3D]}``. The
    gates are in the order reset, update, new.

    Attributes:
      num_outputs: K, the number of labels.
      reading_steps: the number of steps in which the premise is read.
      dropout_rate: of the inputs of each layer; the vectors of a text lose the same dimensions at all positions.
    """

    num_outputs: int = 2
    reading_steps: int = 5
    step_dropout_rate: float = 0.1
    dropout_rate: float = 0.0
    reads: ClassVar[tuple[str, ...]] = ("token_type_ids",)

    @nn.compact
    def __call__(self, outputs: Outputs, batch: Batch, rng: RowRng | None) -> dict[str, jax.Array]:
        """Return logits [B, K], which are log probabilities, float32 or wider, for sequence [B, L, D].

        ``token_type_ids`` [B, L] is 0 in the premise and 1 in the hypothesis, also if the encoder reads none.
        """
        config, rate = self.config, self.dropout_rate
        x = outputs["sequence"].astype(jnp.promote_types(outputs["sequence"].dtype, jnp.float32))
        size, real, second = x.shape[-1], batch["attention_mask"] > 0, batch["token_type_ids"] > 0

        def dense(name: str, inputs: int, width: int) -> Dense:
            return Dense(config, (("embed", inputs),), ((None, width),), config.param_dtype, name=name)

        attention, classifier, gru = (
            dense("attention", size, size),
            dense("dense", 4 * size, self.num_outputs),
            _Gru(name="gru"),
        )
        dropped = _dropout_of_dimensions(x, rate, rng, "hypothesis")
        scores = dense("pooling", size, 1)(dropped)[..., 0]
        state = _weighted_mean(dropped, scores, real & second)
        steps = []
        for number in range(self.reading_steps):
            here = rng and rng.site(f"step_{number}")
            query = attention(dropout(state, rate, here, "query"))
            scores = jnp.einsum("bld,bd->bl", _dropout_of_dimensions(x, rate, here, "premise"), query)
            read = _weighted_mean(x, scores, real & ~second)
            both = state, read, jnp.abs(state - read), state * read
            # Dropout after the concatenation would be the same, but XLA on CPU then compiles for minutes.
            kept = [dropout(one, rate, here, f"classifier_{i}") for i, one in enumerate(both)]
            steps.append(jax.nn.log_softmax(classifier(jnp.concatenate(kept, axis=-1))))
            state = gru(read, dropout(state, rate, here, "state"))
        counts = self._kept(x.shape[0], rng).astype(x.dtype)
        total = jax.nn.logsumexp(jnp.stack(steps, axis=1), axis=1, b=counts[:, :, None])
        return {"logits": total - jnp.log(jnp.sum(counts, axis=1, keepdims=True))}

    def _kept(self, num_rows: int, rng: RowRng | None) -> jax.Array:
        """Return whether each step counts, [B, steps] bool."""
        shape = (num_rows, self.reading_steps)
        if rng is None:
            return jnp.ones(shape, bool)
        always = rng.site("kept_step").bits((num_rows, 1)) % jnp.uint32(self.reading_steps)
        kept = rng.site("steps").bits(shape) >= jnp.uint32(round(self.step_dropout_rate * 2**32))
        return kept | (always == jnp.arange(self.reading_steps, dtype=jnp.uint32)[None, :])


class _Gru(nn.Module):
    """One step of a gated recurrent unit (Cho et al. 2014), with the two biases of ``torch.nn.GRUCell``."""

    @nn.compact
    def __call__(self, x: jax.Array, state: jax.Array) -> jax.Array:
        """Return the next state [B, D] after reading x [B, D] in ``state`` [B, D]."""
        size = state.shape[-1]
        initial = uniform(1.0 / math.sqrt(size))

        def product(vectors: jax.Array, prefix: str) -> list[jax.Array]:
            kernel = self.param(f"{prefix}kernel", with_axes(initial, "embed", "gates"), (size, 3 * size), x.dtype)
            bias = self.param(f"{prefix}bias", with_axes(initial, None), (3 * size,), x.dtype)
            return jnp.split(vectors @ kernel + bias[None, :], 3, axis=-1)

        reset, update, new = product(x, "")
        reset_before, update_before, new_before = product(state, "recurrent_")
        kept = jax.nn.sigmoid(update + update_before)
        new = jnp.tanh(new + jax.nn.sigmoid(reset + reset_before) * new_before)
        return (1.0 - kept) * new + kept * state


def _weighted_mean(x: jax.Array, scores: jax.Array, which: jax.Array) -> jax.Array:
    """Return the mean [B, D] of x [B, L, D] by the softmax of scores [B, L] where ``which`` [B, L] is true."""
    return jnp.einsum("bld,bl->bd", x, jax.nn.softmax(jnp.where(which, scores, NEVER), axis=-1))


def _dropout_of_dimensions(x: jax.Array, rate: float, rng: RowRng | None, site: str) -> jax.Array:
    """Return x [B, L, D] after dropout that leaves out the same dimensions at all positions of a row."""
    if rng is None or rate == 0.0:
        return x
    return x * dropout(jnp.ones_like(x[:, :1]), rate, rng, site)
