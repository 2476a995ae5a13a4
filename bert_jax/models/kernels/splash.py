"""Attention without dropout as JAX's splash kernels for TPUs, which read and write no scores in the main memory.

``rows`` holds whole rows on the chip, and long ones do not fit there. A program of the splash kernels goes over the
keys of some queries of one head, a block at a time. The backward kernel computes the probabilities again from the
logarithm of each softmax's denominator, and from them all three gradients. The compiler pads heads to the 128 lanes of
a register. Blocks of keys that belong to other packed sequences are computed, and hidden.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import splash_attention

from bert_jax.models.kernels.base import (
    LANES,
    OUTPUT,
    Arrays,
    Case,
    Factors,
    a_window,
    other_dtype,
    other_heads,
    other_platform,
    parts_of_heads,
)

# Keys that a program has on the chip, keys that it multiplies at a time, and queries of a program forward and backward.
# The best of seven by the compiler's own schedule for v5e (bert_jax/planning/README.md); fewer where a head takes more
# than 128 bytes of a position, because a program has 16 MiB of a v4's own memory.
_BLOCKS, _FEWER = (2048, 512, 512, 1024), (1024, 512, 512, 512)
WORTHWHILE = 1024  # XLA itself keeps scores of shorter rows on a TPU's chip


def obstacle(case: Case) -> str | None:
    if wrong := other_platform(case, "tpu"):
        return wrong
    if case.rate:
        return f"has no dropout, and config.model.attention_dropout_rate is {case.rate:g}"
    if wrong := other_dtype(case, "bfloat16", "float32") or other_heads(case) or parts_of_heads(case):
        return wrong
    if case.length % LANES:
        return f"needs rows whose length is a multiple of {LANES}, and they have {case.length:,} positions"
    return a_window(case)


def attend(factors: Factors, ids: Arrays, dropout_keys: Arrays, case: Case) -> jax.Array:
    """Return attention [B, L, H, head_dim] without dropout, for L a multiple of 128 (``base.Kernel``).

    A query of padding sees the keys of padding, because the kernels need a key for each query.
    """
    del dropout_keys
    query, key, value = (jnp.swapaxes(x, 1, 2) for x in factors)  # each [B, H, L, head_dim]
    _, heads, length, head_dim = query.shape
    mask = (splash_attention.CausalMask if case.causal else splash_attention.FullMask)((length, length))
    sizes = _BLOCKS if head_dim * query.dtype.itemsize <= 128 else _FEWER
    keys, block, forward, backward = (math.gcd(length, size) for size in sizes)
    across = splash_attention.QKVLayout.SEQ_MINOR  # positions on lanes: heads of 64 entries take no padding in memory
    kernel = splash_attention.make_splash_mha_single_device(
        splash_attention.MultiHeadMask([mask] * heads),
        block_sizes=splash_attention.BlockSizes(
            block_q=forward,
            block_kv=keys,
            block_kv_compute=block,
            block_q_dkv=backward,
            block_kv_dkv=keys,
            block_kv_dkv_compute=block,
            use_fused_bwd_kernel=True,
            q_layout=across,
            k_layout=across,
            v_layout=across,
        ),
        residual_checkpoint_name=OUTPUT,
        interpret=case.platform == "cpu",
    )
    segments = splash_attention.SegmentIds(ids[1], ids[1])
    out = jax.vmap(kernel)(query / math.sqrt(head_dim), key, value, segments)
    return jnp.swapaxes(out, 1, 2)
