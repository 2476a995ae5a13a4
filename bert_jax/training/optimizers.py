"""AdamW and LAMB in the variants used for BERT, built from parts of optax; ``decay_mask`` says what is decayed."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bert_jax.configuration import ONE, check_fields

_BIAS_CORRECTION = {"adamw": "none", "lamb": "standard"}  # the defaults: as each optimizer was published


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """The settings of the optimizer. The defaults are those of google-research/bert, optimization.py.

    bias_correction: "none" is the published BERT optimizer, whose first updates are up to 3.16 times those of Adam with
    "standard" correction (Kingma and Ba 2015, section 3). None is replaced by the default of ``kind``: "none" for
    AdamW, "standard" for LAMB (You et al. 2020, algorithm 2).
    """

    kind: Literal["adamw", "lamb"] = "adamw"  # AdamW, or LAMB for very large batches
    b1: float = 0.9  # decay of the mean of gradients
    b2: float = 0.999  # decay of the mean of squared gradients
    eps: float = 1e-6  # added to the root of the second moment
    weight_decay: float = 0.01  # decay of weights; biases and layer norms are not decayed
    clip_norm: float | None = 1.0  # gradients with a larger norm are scaled to it; None: never
    # of Adam's moments; if None, "none" (as published) with AdamW and "standard" with LAMB
    bias_correction: Literal["none", "standard"] | None = None

    def __post_init__(self) -> None:
        if self.bias_correction is None:
            object.__setattr__(self, "bias_correction", _BIAS_CORRECTION[self.kind])
        where = "config.optimizer"
        check_fields(self, where, "from 0 to below 1 is allowed", "b1", "b2", sound=lambda value: 0 <= value < ONE)
        check_fields(self, where, "more than 0 is needed", "eps", sound=lambda value: value > 0)
        check_fields(self, where, "at least 0 is needed", "weight_decay", sound=lambda value: value >= 0)
        allowed = "more than 0 is needed, or None to clip nothing"
        check_fields(self, where, allowed, "clip_norm", sound=lambda value: value is None or value > 0)


class _AdamState(NamedTuple):
    mu: Any  # first moment, like params
    nu: Any  # second moment, like params


def _scale_by_adam_uncorrected(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    """Return Adam's m / (sqrt(v) + eps) without bias correction (google-research/bert, AdamWeightDecayOptimizer)."""

    def init(params: Any) -> _AdamState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return _AdamState(zeros, jax.tree.map(jnp.copy, zeros))

    def update(updates: Any, state: _AdamState, params: Any = None) -> tuple[Any, _AdamState]:
        del params
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, updates)
        nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, state.nu, updates)
        steps = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), mu, nu)
        return steps, _AdamState(mu, nu)

    return optax.GradientTransformation(init, update)  # type: ignore[arg-type]


def decay_mask(params: Any) -> Any:
    """Return a tree that is True where weight decay applies: except in leaves whose names end in "bias" or "scale"."""
    return jax.tree_util.tree_map_with_path(lambda path, _: not _leaf_name(path).endswith(("bias", "scale")), params)


def _leaf_name(path: tuple[Any, ...]) -> str:
    names = [str(key.key) for key in path if isinstance(key, jax.tree_util.DictKey)]
    return names[-1] if names else ""


def _is_stacked(path: tuple[Any, ...]) -> bool:
    return any(isinstance(key, jax.tree_util.DictKey) and key.key == "layers" for key in path)


def _scale_by_layer_trust_ratio() -> optax.GradientTransformation:
    """Scale the update of each parameter by |w| / |update| (You et al. 2020, algorithm 2), per layer if stacked.

    The ratio is 1 for weights that are not decayed, as in the published optimizer: a weight that starts at zero would
    otherwise stay near zero.
    """

    def scale(path: tuple[Any, ...], update: jax.Array, weight: jax.Array, decayed: bool) -> jax.Array:
        if not decayed:
            return update
        axes = tuple(range(1 if _is_stacked(path) else 0, weight.ndim))
        weight_norm = jnp.sqrt(jnp.sum(jnp.square(weight), axes, keepdims=True))
        update_norm = jnp.sqrt(jnp.sum(jnp.square(update), axes, keepdims=True))
        usable = (weight_norm > 0) & (update_norm > 0)
        return update * jnp.where(usable, weight_norm / jnp.where(usable, update_norm, 1.0), 1.0)

    def update(updates: Any, state: optax.EmptyState, params: Any = None) -> tuple[Any, optax.EmptyState]:
        return jax.tree_util.tree_map_with_path(scale, updates, params, decay_mask(params)), state

    return optax.GradientTransformation(lambda _: optax.EmptyState(), update)  # type: ignore[arg-type]


def make_optimizer(config: OptimizerConfig) -> optax.GradientTransformation:
    """Return the optimizer without its learning rate: clip by global norm, Adam, decoupled decay, LAMB trust ratio.

    The train step multiplies the optimizer's output by minus the learning rate. So the schedule follows the step number
    of this run, even if the moments come from another run.
    """
    if config.bias_correction == "none":
        adam = _scale_by_adam_uncorrected(config.b1, config.b2, config.eps)
    else:
        adam = optax.scale_by_adam(config.b1, config.b2, config.eps)
    return optax.chain(
        optax.identity() if config.clip_norm is None else optax.clip_by_global_norm(config.clip_norm),
        adam,
        optax.add_decayed_weights(config.weight_decay, mask=decay_mask),
        _scale_by_layer_trust_ratio() if config.kind == "lamb" else optax.identity(),
    )
