"""Learning-rate schedules. A schedule runs over all phases of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp

from bert_jax.configuration import check_fields
from bert_jax.errors import UserError

Schedule = Callable[[jax.Array | int], jax.Array]


@dataclasses.dataclass(frozen=True)
class ScheduleConfig:
    """The rate rises to ``peak_learning_rate`` over the warm-up, then follows ``kind`` to the last step.

    kind:
      linear_from_zero     the code that trained BERT (google-research/bert, optimization.py): the linear decay
                           runs from step 0, so the rate after the warm-up starts at peak * (1 - warmup/N), not at peak
      linear               from peak at the end of the warm-up to 0 at the last step
      cosine               half a cosine from peak to 0
      warmup_stable_decay  peak until ``decay_steps`` before the end, then linear to 0
    """

    # how the rate falls after the warm-up
    kind: Literal["linear_from_zero", "linear", "cosine", "warmup_stable_decay"] = "linear_from_zero"
    peak_learning_rate: float = 1e-4  # the rate at the end of the warm-up
    warmup_steps: int = 10_000  # steps in which the rate rises from 0
    decay_steps: int = 0  # warmup_stable_decay only
    warmup_fraction: float | None = None  # in place of warmup_steps: the warm-up as a share of all steps

    def __post_init__(self) -> None:
        where = "config.schedule"
        check_fields(self, where, "more than 0 is needed", "peak_learning_rate", sound=lambda value: value > 0)
        check_fields(self, where, "at least 0 is needed", "warmup_steps", "decay_steps", sound=lambda value: value >= 0)
        share = "a share from 0 to below 1 is needed"
        check_fields(self, where, share, "warmup_fraction", sound=lambda value: value is None or 0 <= value < 1)

    def warmup(self, num_train_steps: int) -> int:
        """Return the number of warm-up steps of a run of ``num_train_steps``."""
        if self.warmup_fraction is None:
            return self.warmup_steps
        return round(self.warmup_fraction * num_train_steps)

    def remarks(self, num_train_steps: int) -> tuple[str, ...]:
        """Return a line for the user if the warm-up takes at least half of the run, as in a run made shorter."""
        warmup = self.warmup(num_train_steps)
        if 2 * warmup < num_train_steps:
            return ()
        rising = f"the learning rate rises for {warmup:,} of {num_train_steps:,} steps (config.schedule)"
        return (f"{rising}; --config.schedule.warmup_fraction=0.1 lets it rise for a tenth of them",)


def make_schedule(config: ScheduleConfig, num_train_steps: int) -> Schedule:
    """Return the function that maps a step to its learning rate.

    Step 0 is the first update; with a warm-up its rate is 0.

    Raises:
      UserError: warm-up and decay do not fit into ``num_train_steps``.
    """
    total, peak = num_train_steps, config.peak_learning_rate
    warmup = config.warmup(total)
    if warmup + config.decay_steps > total:
        raise UserError(
            f"config.schedule: warmup_steps {warmup} + decay_steps {config.decay_steps} exceed the run's {total} "
            "steps; train longer, or give a share of the run with --config.schedule.warmup_fraction=0.1"
        )

    def after_warmup(step: jax.Array) -> jax.Array:
        if config.kind == "linear_from_zero":
            return 1.0 - step / total
        if config.kind == "warmup_stable_decay":
            return (total - step) / config.decay_steps if config.decay_steps else jnp.ones_like(step)
        progress = (step - warmup) / max(total - warmup, 1)
        return 1.0 - progress if config.kind == "linear" else 0.5 * (1.0 + jnp.cos(jnp.pi * progress))

    def schedule(step: jax.Array | int) -> jax.Array:
        position = jnp.asarray(step, jnp.float32)
        decayed = jnp.clip(after_warmup(position), 0.0, 1.0)
        return peak * jnp.where(position < warmup, position / max(warmup, 1), decayed)

    return schedule
