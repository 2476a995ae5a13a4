"""The peak, and at the end a decay to a share of it.

ModernBERT decays by 1 - sqrt (Hägele et al. 2024, arXiv 2405.18392) to 0.001 of the peak (Warner et al. 2024).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal, Self

import jax
import jax.numpy as jnp
import optax

from bert_jax.configuration import check_fields
from bert_jax.rows.phases import Phase, steps_that_read
from bert_jax.training.schedules import base


@dataclasses.dataclass(frozen=True)
class Schedule(base.Warmup):
    """After n of the N steps of the decay the rate is a + (1 - a)(1 - n/N) of the peak, or a + (1 - a)(1 - sqrt(n/N)).

    a is ``final_fraction``.
    """

    decay_steps: int = 0  # steps of the decay; 0: the rate never falls
    decay_fraction: float | None = None  # in place of decay_steps: the decay as a share of all steps
    decay_tokens: int | None = None  # in place of decay_steps: positions of all rows that are read in the decay
    decay: Literal["linear", "one_minus_sqrt"] = "linear"  # its shape; one_minus_sqrt falls fast at first
    final_fraction: float = 0.0  # the rate at its end, as a share of the peak

    def __post_init__(self, where: str) -> None:
        super().__post_init__(where)
        names = ("decay_steps", "decay_tokens")
        check_fields(self, where, "at least 0 is needed", *names, sound=lambda value: value is None or value >= 0)
        share, shares = "a share from 0 to 1 is needed", ("decay_fraction", "final_fraction")
        check_fields(self, where, share, *shares, sound=lambda value: value is None or 0 <= value <= 1)

    def in_steps(self, phases: Sequence[Phase]) -> Self:
        schedule = super().in_steps(phases)
        if schedule.decay_tokens is None:
            return schedule
        steps = steps_that_read(schedule.decay_tokens, phases[::-1])
        return dataclasses.replace(schedule, decay_steps=steps, decay_tokens=None)

    def falling(self, num_train_steps: int) -> int:
        """Return the number of steps of the decay in a run of ``num_train_steps``."""
        return self.decay_steps if self.decay_fraction is None else round(self.decay_fraction * num_train_steps)

    def make(self, num_train_steps: int) -> optax.Schedule:
        warmup, falling = self.warmup(num_train_steps), self.falling(num_train_steps)
        if warmup + falling > num_train_steps:
            raise self.does_not_fit(f"warmup_steps {warmup} + decay_steps {falling}", num_train_steps)
        return super().make(num_train_steps)

    def after_warmup(self, step: jax.Array, num_train_steps: int) -> jax.Array:
        if not (falling := self.falling(num_train_steps)):
            return jnp.ones_like(step)
        left = jnp.clip((num_train_steps - step) / falling, 0.0, 1.0)
        if self.decay == "one_minus_sqrt":
            left = 1.0 - jnp.sqrt(1.0 - left)
        return self.final_fraction + (1.0 - self.final_fraction) * left
