"""Trains small encoders on rows of toy languages, in seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bert_jax.losses.cross_entropy import cross_entropy
from bert_jax.models.encoders import bert
from bert_jax.models.model import LM_HEAD, Model, Part
from bert_jax.rows.sequence_rows import SequenceRows
from bert_jax.training.mesh import unbox

Batch = dict[str, np.ndarray]
BATCH = 64


def term(outputs: Any, batch: Any, logits: str, labels: str, weights: str) -> tuple[jax.Array, jax.Array]:
    """Return the mean loss of a term and its accuracy."""
    total, hits = cross_entropy(outputs[logits], batch[labels], batch[weights])
    return tuple(sums.value / jnp.maximum(sums.count, 1) for sums in (total, hits))  # type: ignore[return-value]


def masked_lm(outputs: Any, batch: Any) -> tuple[jax.Array, jax.Array]:
    """Return loss and accuracy of the masked tokens."""
    return term(outputs, batch, "mlm_logits", "masked_labels", "masked_weights")


class Learner:
    """A 2 x 64 BERT that learns a language of ``size`` pieces from the rows of a source."""

    def __init__(self, size: int, length: int, parts: Sequence[Part] = (LM_HEAD,), loss: Any = masked_lm):
        config = bert.Config(size, 64, 2, 4, 128, max_length=length, dropout_rate=0.0, attention_dropout_rate=0.0)
        self.size, self.model = size, Model(config, tuple(parts))
        self.apply = jax.jit(lambda params, batch: self.model.apply({"params": params}, batch))
        self.measure = jax.jit(lambda params, batch: loss(self.model.apply({"params": params}, batch), batch))

    def rows(self, source: SequenceRows, start: int, count: int = BATCH) -> Batch:
        """Return ``count`` rows from ``start`` on, counted through all epochs; random pieces are of the language."""
        batch = source.rows(*np.divmod(start + np.arange(count), source.rows_per_epoch))
        batch["input_ids"] = np.minimum(batch["input_ids"], self.size - 1)
        return batch

    def learn(self, source: SequenceRows, seed: int, steps: int, rate: float = 2e-3) -> Any:
        """Return the parameters after ``steps``, with Adam and a rate that falls to 0."""
        optimizer = optax.adam(optax.linear_schedule(rate, 0.0, steps))

        @jax.jit
        def step(params: Any, moments: Any, batch: Any) -> Any:
            direction = jax.grad(lambda params: self.measure(params, batch)[0])(params)
            updates, moments = optimizer.update(direction, moments)
            return optax.apply_updates(params, updates), moments

        params = unbox(self.model.init(jax.random.key(seed), self.rows(source, 0))["params"])
        moments = optimizer.init(params)
        for number in range(steps):
            params, moments = step(params, moments, self.rows(source, number * BATCH))
        return params
