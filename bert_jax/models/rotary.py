"""Rotary positions: queries and keys are rotated by angles that grow with the position (Su et al. 2021).

The product of a query and a key then depends on how far apart they are, and not on where they are.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

Rotation: TypeAlias = tuple[jax.Array, jax.Array]  # the cosines and the sines of the angles


def rotation(positions: jax.Array, head_dim: int, base: float, dtype: Any) -> Rotation:
    """Return the cosine and the sine of each angle ``position * base^(-2j / head_dim)``, [B, L, 1, head_dim / 2] each.

    Args:
      positions: [B, L], or [1, L] if they are the same in every row.
      dtype: float32 or wider; the angles are computed in it.
    """
    frequencies = 1.0 / base ** (jnp.arange(0, head_dim, 2, dtype=dtype) / head_dim)
    angles = positions[:, :, None, None].astype(dtype) * frequencies[None, None, None, :]
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x: jax.Array, by: Rotation) -> jax.Array:
    """Return x [B, L, H, head_dim] rotated, computed in the dtype of the angles; entry j turns with j + head_dim / 2.

    GPT-NeoX has this order of the pairs too. The result has the dtype of ``x``.
    """
    cosine, sine = by
    first, second = jnp.split(x.astype(cosine.dtype), 2, axis=-1)
    turned = (first * cosine - second * sine, second * cosine + first * sine)
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)
