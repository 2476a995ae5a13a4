"""The steps of a run that ``--profile=FIRST:LAST`` traces. The command line reads this file, so it imports no jax."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from bert_jax.errors import UserError

TIMES = "profile.json"  # the file in the workdir that says how the time of a traced step on a GPU splits


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

    def check(self, num_steps: int) -> None:
        """Raise ``UserError`` if the last step is after the ``num_steps`` of the run."""
        if self.last > num_steps:
            raise UserError(
                f"--profile={self} ends past the run, which has {num_steps:,} steps; give steps from 1 to "
                f"{num_steps:,}, or leave --profile out"
            )


def split_in_words(steps: str, milliseconds: Mapping[str, float]) -> str:
    """Return the split of a traced step's time: "steps 6 to 8 on a GPU, each: 43 ms = products 17.3 (40%), ..."."""
    total = sum(milliseconds.values())
    parts = ", ".join(f"{kind} {ms:.3g} ({ms / total:.0%})" for kind, ms in milliseconds.items())
    return f"{steps} on a GPU, each: {total:.3g} ms = {parts}"
