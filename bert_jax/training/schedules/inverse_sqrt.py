"""The peak at the end of the warm-up, then a rate that falls with the root of the step (Vaswani et al. 2017, 5.3).

The published rate, d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5), is this with the peak (d_model *
warmup_steps)^-0.5: 7e-4 for 512 and 4,000. It does not depend on how long the run is.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from bert_jax.training.schedules import base


@dataclasses.dataclass(frozen=True)
class Schedule(base.Warmup):
    def after_warmup(self, step: jax.Array, num_train_steps: int) -> jax.Array:
        return jnp.sqrt(max(self.warmup(num_train_steps), 1) / jnp.maximum(step, 1.0))
