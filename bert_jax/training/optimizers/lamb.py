"""LAMB, for very large batches (You et al. 2020, algorithm 2)."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from bert_jax.training.optimizers import adamw, base


@dataclasses.dataclass(frozen=True)
class Optimizer(adamw.Optimizer):
    """Adam with decay, each parameter's step scaled by a trust ratio of norms of whole matrices."""

    bias_correction: Literal["none", "standard"] = "standard"  # of Adam's moments; "standard" is the published one

    def make(self) -> optax.GradientTransformation:
        return self._with(_scale_by_layer_trust_ratio())


def _scale_by_layer_trust_ratio() -> optax.GradientTransformation:
    """Scale the update of each parameter by |w| / |update|, per layer if stacked.

    The ratio is 1 for weights that are not decayed, as in the published optimizer: a weight that starts at zero would
    otherwise stay near zero.
    """

    def scale(path: tuple[Any, ...], update: jax.Array, weight: jax.Array, decayed: bool) -> jax.Array:
        if not decayed:
            return update
        axes = base.own_axes(path, weight)
        weight_norm = jnp.sqrt(jnp.sum(jnp.square(weight), axes, keepdims=True))
        update_norm = jnp.sqrt(jnp.sum(jnp.square(update), axes, keepdims=True))
        usable = (weight_norm > 0) & (update_norm > 0)
        return update * jnp.where(usable, weight_norm / jnp.where(usable, update_norm, 1.0), 1.0)

    def update(updates: Any, state: optax.EmptyState, params: Any = None) -> tuple[Any, optax.EmptyState]:
        return jax.tree_util.tree_map_with_path(scale, updates, params, base.decay_mask(params)), state

    return optax.GradientTransformation(lambda _: optax.EmptyState(), update)  # type: ignore[arg-type]
