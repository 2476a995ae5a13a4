"""Counts the floating-point operations of a training step, to compute model FLOPs utilisation."""

from __future__ import annotations

from bert_jax.models.config import ModelConfig


def train_flops_per_row(config: ModelConfig, length: int, num_masked: int, num_pooled: int = 1) -> float:
    """Return the FLOPs of the forward and backward pass of a row of ``length`` positions.

    ``num_masked`` of the positions are predicted and ``num_pooled`` are pooled and classified. A multiply-add counts as
    two operations, and the backward pass as twice the forward pass; only matrix products count (Kaplan et al. 2020,
    section 2.1). Padding counts, since the model computes it; recomputation does not count.
    """
    d, e = config.hidden_size, config.embedding_size
    mlm_head = d * e + config.vocab_size * e
    pooler = num_pooled * (d * d + 2 * d)
    return encoder_train_flops(config, length) + 6.0 * (num_masked * mlm_head + pooler)


def encoder_train_flops(config: ModelConfig, length: int) -> float:
    """Return the FLOPs, forward and backward, of a row of ``length`` positions in all layers.

    The projection of the embeddings, if there is one, is included.
    """
    return 6.0 * config.products(length)
