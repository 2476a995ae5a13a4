"""AdamW in the variants used for BERT."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bert_jax.configuration import ONE, check_fields
from bert_jax.training.optimizers import base


@dataclasses.dataclass(frozen=True)
class Adam(base.Rule):
    """The options of every optimizer with Adam's moments. The defaults come from google-research/bert."""

    b1: float = 0.9  # decay of the mean of gradients
    b2: float = 0.999  # decay of the mean of squared gradients
    eps: float = 1e-6  # added to the root of the second moment
    weight_decay: float = 0.01  # decay of weights; biases and layer norms are not decayed
    clip_norm: float | None = 1.0  # gradients with a larger norm are scaled to it; None: never

    def __post_init__(self) -> None:
        where = "config.optimizer"
        check_fields(self, where, "from 0 to below 1 is allowed", "b1", "b2", sound=lambda value: 0 <= value < ONE)
        check_fields(self, where, "more than 0 is needed", "eps", sound=lambda value: value > 0)
        check_fields(self, where, "at least 0 is needed", "weight_decay", sound=lambda value: value >= 0)
        allowed = "more than 0 is needed, or None to clip nothing"
        check_fields(self, where, allowed, "clip_norm", sound=lambda value: value is None or value > 0)


@dataclasses.dataclass(frozen=True)
class Optimizer(Adam):
    """The defaults come from google-research/bert, optimization.py.

    bias_correction: of Adam's moments; "none" is the published BERT optimizer. Its first updates are up to 3.16 times
      as large as with "standard" correction (Kingma and Ba 2015, section 3).
    """

    bias_correction: Literal["none", "standard"] = "none"

    def make(self) -> optax.GradientTransformation:
        return self._with(optax.identity())

    def _with(self, last: optax.GradientTransformation) -> optax.GradientTransformation:
        """Return clipping by global norm, Adam, decoupled decay and ``last``; checkpoints have a place for each."""
        uncorrected = self.bias_correction == "none"
        adam = (_scale_by_adam_uncorrected if uncorrected else optax.scale_by_adam)(self.b1, self.b2, self.eps)
        return optax.chain(base.clip(self.clip_norm), adam, base.decay(self.weight_decay), last)


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
