"""The steps of a run that ``--profile=FIRST:LAST`` traces. The command line reads this file, so it imports no jax."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from bert_jax.errors import UserError

KEY = "profile"  # in run.json: the steps that the last command with --profile named


@dataclasses.dataclass(frozen=True)
class ProfiledSteps:
    """The steps to trace, from ``first`` to ``last``, both included. As in the log, the first step of a run is 1."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first}:{self.last}"

    @property
    def in_words(self) -> str:
        return f"step {self.first:,}" if self.first == self.last else f"steps {self.first:,} to {self.last:,}"


def with_profile(
    profiled: ProfiledSteps | None, run: Mapping[str, Any], num_steps: int, reached: int
) -> dict[str, Any]:
    """Return the content of ``run.json`` with the steps to trace, after checking that the run still has them.

    A command that is repeated after an interruption names the same steps as the run's record. It may resume past them,
    because otherwise ``--restarts`` and launchers could not repeat a command with ``--profile``.

    Args:
      num_steps: the steps of the whole run.
      reached: the step from which the run resumes; 0 if it is new.

    Raises:
      UserError: the run ends before the last of the steps, or resumes past the first.
    """
    if profiled is None:
        return dict(run)
    allowed = "leave --profile out"
    if reached < num_steps:
        allowed = f"give steps from {reached + 1:,} to {num_steps:,}, or {allowed}"
    if profiled.last > num_steps:
        raise UserError(f"--profile={profiled} ends past the run, which has {num_steps:,} steps; {allowed}")
    if profiled.first <= reached and run.get(KEY) != str(profiled):
        raise UserError(f"--profile={profiled} begins at a step that is done: the run is at {reached:,}; {allowed}")
    return {**run, KEY: str(profiled)}
