"""Attention without dropout as cuDNN's kernels for NVIDIA GPUs, by ``jax.nn.dot_product_attention``.

In jax 0.10.2 that function has windows to the left alone, and no packed rows: only the private binding below it takes
the offsets of sequences.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from bert_jax.models.kernels.base import (
    Arrays,
    Case,
    Factors,
    a_window,
    other_dtype,
    other_platform,
    parts_of_heads,
)

WORTHWHILE = None  # it has no dropout like ours, and ``flash`` has


def obstacle(case: Case) -> str | None:
    if wrong := other_platform(case, "gpu"):
        return wrong
    if case.rate:
        return f"has no dropout like ours, and config.model.attention_dropout_rate is {case.rate:g}"
    if wrong := other_dtype(case, "bfloat16"):
        return wrong
    if case.head_dim % 8 or case.head_dim > 128:
        return f"needs heads whose size is a multiple of 8 up to 128, and these have {case.head_dim} entries"
    if wrong := parts_of_heads(case):
        return wrong
    if case.packed:
        return "needs one sequence in a row, and rows are packed (config.objective.packing)"
    return a_window(case)


def attend(factors: Factors, ids: Arrays, dropout_keys: Arrays, case: Case) -> jax.Array:
    """Return attention of unpacked rows without dropout, [B, L, H, head_dim] (``base.Kernel``)."""
    del dropout_keys
    lengths = jnp.maximum(jnp.sum(ids[1], axis=1, dtype=jnp.int32), 1)
    return jax.nn.dot_product_attention(
        *factors, is_causal=case.causal, key_value_seq_lengths=lengths, implementation="cudnn"
    )
