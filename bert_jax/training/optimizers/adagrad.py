"""Adagrad (Duchi et al. 2011): each weight's gradient over the root of the sum of all its squared gradients so far.

The published ELMo trains with it.
"""

from __future__ import annotations

import dataclasses

import optax

from bert_jax.configuration import check_fields
from bert_jax.training.optimizers import base


@dataclasses.dataclass(frozen=True)
class Optimizer(base.Rule):
    """Adagrad as TensorFlow computes it: nothing is added to the root, and no weight decays."""

    initial_accumulator: float = 0.1  # the sum of squares of each weight before the first step
    clip_norm: float | None = 1.0  # gradients with a larger norm are scaled to it; None: never

    def __post_init__(self) -> None:
        where = "config.optimizer"
        check_fields(self, where, "more than 0 is needed", "initial_accumulator", sound=lambda value: value > 0)
        allowed = "more than 0 is needed, or None to clip nothing"
        check_fields(self, where, allowed, "clip_norm", sound=lambda value: value is None or value > 0)

    def make(self) -> optax.GradientTransformation:
        return optax.chain(base.clip(self.clip_norm), optax.scale_by_rss(self.initial_accumulator, eps=0.0))
