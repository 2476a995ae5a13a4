"""The base class of learning-rate schedules.

The schedule of a run runs over all phases, except phases with a schedule; such a schedule runs over its phase.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import Self

import jax
import jax.numpy as jnp
import optax

from bert_jax.configuration import check_fields
from bert_jax.errors import UserError
from bert_jax.rows.phases import Phase, steps_that_read

RUN = "config.schedule"


@dataclasses.dataclass(frozen=True)
class Warmup(abc.ABC):
    """The rate rises to ``peak_learning_rate`` over the warm-up, then follows ``after_warmup`` to the last step.

    The fields are keys of ``config.schedule`` and of ``config.phases.NAME.schedule``; ``where`` is one of these paths.
    """

    peak_learning_rate: float = 1e-4  # the rate at the end of the warm-up
    warmup_steps: int = 10_000  # steps in which the rate rises from 0
    warmup_fraction: float | None = None  # in place of warmup_steps: the warm-up as a share of all steps
    warmup_tokens: int | None = None  # in place of warmup_steps: positions of all rows that are read in the warm-up
    where: dataclasses.InitVar[str] = dataclasses.field(default=RUN, kw_only=True)
    # the rate of each layer is this share of the next one's; heads have the full rate (training/layer_rates.py)
    layer_decay: float | None = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self, where: str) -> None:
        object.__setattr__(self, "where", where)  # where dataclasses.replace finds it
        check_fields(self, where, "more than 0 is needed", "peak_learning_rate", sound=lambda value: value > 0)
        check_fields(self, where, "at least 0 is needed", "warmup_steps", sound=lambda value: value >= 0)
        share = "a share from 0 to below 1 is needed"
        check_fields(self, where, share, "warmup_fraction", sound=lambda value: value is None or 0 <= value < 1)
        least = "at least 0 is needed"
        check_fields(self, where, least, "warmup_tokens", sound=lambda value: value is None or value >= 0)
        allowed = "more than 0 and at most 1 is needed, or None"
        check_fields(self, where, allowed, "layer_decay", sound=lambda value: value is None or 0 < value <= 1)

    @property
    def path(self) -> str:
        """The path of its keys in the recipe."""
        return str(vars(self)["where"])

    def in_steps(self, phases: Sequence[Phase]) -> Self:
        """Return the same schedule for the steps of ``phases``, in which lengths given in tokens have become steps."""
        if self.warmup_tokens is None:
            return self
        steps = steps_that_read(self.warmup_tokens, phases)
        return dataclasses.replace(self, warmup_steps=steps, warmup_tokens=None)

    @abc.abstractmethod
    def after_warmup(self, step: jax.Array, num_train_steps: int) -> jax.Array:
        """Return the rate at ``step`` ([] float32) as a share of the peak; below 0 counts as 0, above 1 as 1.

        It is called for the steps of the warm-up too, and what it returns for them does not count.
        """

    def warmup(self, num_train_steps: int) -> int:
        """Return the number of warm-up steps of a run of ``num_train_steps``."""
        if self.warmup_fraction is None:
            return self.warmup_steps
        return round(self.warmup_fraction * num_train_steps)

    def progress(self, step: jax.Array, num_train_steps: int) -> jax.Array:
        """Return the share of the steps after the warm-up that are done at ``step``: from 0 to 1."""
        warmup = self.warmup(num_train_steps)
        return (step - warmup) / max(num_train_steps - warmup, 1)

    def remarks(self, num_train_steps: int) -> tuple[str, ...]:
        """Return a line for the user if the warm-up takes at least half of the steps, as in a run made shorter."""
        warmup = self.warmup(num_train_steps)
        if 2 * warmup < num_train_steps:
            return ()
        rising = f"the learning rate rises for {warmup:,} of {num_train_steps:,} steps ({self.path})"
        return (f"{rising}; --{self.path}.warmup_fraction=0.1 lets it rise for a tenth of the steps",)

    def make(self, num_train_steps: int) -> optax.Schedule:
        """Return the function that maps a step to its learning rate.

        Step 0 is the first update; with a warm-up its rate is 0.

        Raises:
          UserError: the warm-up does not fit into ``num_train_steps``.
        """
        warmup, peak = self.warmup(num_train_steps), self.peak_learning_rate
        if warmup > num_train_steps:
            raise self.does_not_fit(f"warmup_steps {warmup}", num_train_steps)

        def schedule(step: jax.Array | int) -> jax.Array:
            position = jnp.asarray(step, jnp.float32)
            decayed = jnp.clip(self.after_warmup(position, num_train_steps), 0.0, 1.0)
            return peak * jnp.where(position < warmup, position / max(warmup, 1), decayed)

        return schedule

    def does_not_fit(self, what: str, num_train_steps: int) -> UserError:
        """Return the error for a schedule that is longer than the run, or than its phase."""
        of = "run" if self.path == RUN else "phase"
        return UserError(
            f"{self.path}: {what} exceed the {of}'s {num_train_steps} steps; train longer, or give a share of the "
            f"{of} with --{self.path}.warmup_fraction=0.1"
        )
