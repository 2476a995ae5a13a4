"""Losses and metrics, returned as sums over weighted positions; the caller divides them once, at the end."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from bert_jax.records import Batch, Sum


def cross_entropy(logits: jax.Array, labels: jax.Array, weights: jax.Array) -> tuple[Sum, Sum]:
    """Return negative log likelihood in nats and accuracy of softmax predictions, as sums in float32.

    Args:
      logits: [..., V].
      labels: [...] int, in 0..V-1, even where the weight is 0.
      weights: [...] float, 0 on positions that do not count.

    Returns:
      (weighted sum of nll, sum of weights), (weighted number of hits, sum of weights).
    """
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    largest = jax.lax.stop_gradient(jnp.max(logits, axis=-1))  # [...]
    label_logits = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    nll = largest + jnp.log(jnp.sum(jnp.exp(logits - largest[..., None]), axis=-1)) - label_logits
    hits = (label_logits >= largest).astype(logits.dtype)  # an argmax over V would cost more than the softmax on CPU
    count = jnp.sum(weights)
    return Sum(jnp.sum(nll * weights), count), Sum(jnp.sum(hits * weights), count)


def token_metrics(batch: Batch) -> dict[str, Sum]:
    """Return the metric "tokens", which ``task.Losses`` requires: the number of real tokens in the batch."""
    tokens = jnp.sum(batch["attention_mask"]).astype(jnp.float32)
    return {"tokens": Sum(tokens, jnp.ones_like(tokens))}
