"""The peak until ``decay_steps`` before the end, then linear decay to 0."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import optax

from bert_jax.configuration import check_fields
from bert_jax.training.schedules import base


@dataclasses.dataclass(frozen=True)
class Schedule(base.Warmup):
    decay_steps: int = 0  # steps of the decay; 0: the rate never falls

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, "config.schedule", "at least 0 is needed", "decay_steps", sound=lambda value: value >= 0)

    def make(self, num_train_steps: int) -> optax.Schedule:
        if (warmup := self.warmup(num_train_steps)) + self.decay_steps > num_train_steps:
            raise base.does_not_fit(f"warmup_steps {warmup} + decay_steps {self.decay_steps}", num_train_steps)
        return super().make(num_train_steps)

    def after_warmup(self, step: jax.Array, num_train_steps: int) -> jax.Array:
        return (num_train_steps - step) / self.decay_steps if self.decay_steps else jnp.ones_like(step)
