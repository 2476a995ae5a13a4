"""Linear decay that runs from step 0, as in the code that trained BERT (google-research/bert, optimization.py).

So the rate after the warm-up starts at peak * (1 - warmup/N), not at peak.
"""

from __future__ import annotations

import dataclasses

import jax

from bert_jax.training.schedules import base


@dataclasses.dataclass(frozen=True)
class Schedule(base.Warmup):
    def after_warmup(self, step: jax.Array, num_train_steps: int) -> jax.Array:
        return 1.0 - step / num_train_steps
