"""What layers of an encoder compute, in numpy."""

from __future__ import annotations

import math

import numpy as np


def _erf(x: np.ndarray) -> np.ndarray:
    return np.fromiter(map(math.erf, x.ravel().tolist()), x.dtype, x.size).reshape(x.shape)


def normalised(x: np.ndarray, scale: np.ndarray, bias: np.ndarray, eps: float) -> np.ndarray:
    """Return the layer norm of x [..., D] over its last axis, with scale [D] and bias [D]."""
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * scale + bias


def activated(x: np.ndarray, activation: str) -> np.ndarray:
    """Return x after the activation function ``activation``: "relu", "gelu" or "gelu_tanh"."""
    if activation == "relu":
        return np.maximum(x, 0)
    if activation == "gelu":
        return x * (1 + _erf(x / math.sqrt(2))) / 2
    return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def mixed_values(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, num_heads: int, attention_mask: np.ndarray
) -> np.ndarray:
    """Return the output [B, L, D] of self-attention before its output projection.

    Args:
      query, key, value: the projected vectors, each [B, L, D].
      attention_mask: [B, L], 1 at real tokens and 0 at padding.
    """
    q, k, v = (x.reshape(*x.shape[:2], num_heads, -1).swapaxes(1, 2) for x in (query, key, value))  # [B, H, L, d]
    scores = q @ k.swapaxes(2, 3) / math.sqrt(q.shape[-1]) + (attention_mask - 1.0)[:, None, None] * 10_000
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return ((weights / weights.sum(-1, keepdims=True)) @ v).swapaxes(1, 2).reshape(query.shape)
