"""Linear decay from peak at the end of the warm-up to 0 at the last step."""

from __future__ import annotations

import dataclasses

import jax

from bert_jax.training.schedules import base


@dataclasses.dataclass(frozen=True)
class Schedule(base.Warmup):
    def after_warmup(self, step: jax.Array, num_train_steps: int) -> jax.Array:
        return 1.0 - self.progress(step, num_train_steps)
