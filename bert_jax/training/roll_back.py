"""Rolls a run back from a spike of the loss to an earlier verified step, and leaves out the batches before the spike.

``run.json`` and the facts of checkpoints record which batches were left out. The rows of every step follow from this
record, so a resumed run, and every process of a job, reads the same rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from bert_jax.checkpoints.restoring import newest_verified, saved_steps
from bert_jax.checkpoints.saving import drop_after
from bert_jax.cluster import distributed
from bert_jax.errors import UserError
from bert_jax.rows.phases import Phases
from bert_jax.workdir import run_record

MOST = 10  # the most roll backs of a run: if the loss still leaps after so many, the rows are not the reason
KEY = "rolled_back"  # in run.json


@dataclasses.dataclass(frozen=True)
class RollBack:
    """A roll back that was made, or is to be made."""

    at: int  # the number of steps done when the spike was seen
    to: int  # the step to go back to
    first: int  # the step of the first batch that is left out
    number: int  # the number of batches that are left out

    def message(self) -> str:
        """Return a line that says what the roll back did."""
        batches = f"the {self.number:,} batches from step {self.first:,} on are left out"
        return f"rolled back from step {self.at:,} to {self.to:,}; {batches}"


def of_run(run: Mapping[str, Any]) -> tuple[RollBack, ...]:
    """Return the roll backs that ``run.json`` records."""
    try:
        return tuple(RollBack(**entry) for entry in run.get(KEY, []))
    except TypeError as error:
        raise UserError(f"run.json is damaged: {KEY} has other keys than a roll back; put it back") from error


def without_windows(phases: Phases, roll_backs: tuple[RollBack, ...]) -> Phases:
    """Return ``phases`` without the batches that ``roll_backs`` leave out."""
    return dataclasses.replace(phases, left_out=tuple((back.first, back.number) for back in roll_backs))


def plan(workdir: str, phases: Phases, at: int, start: int, earlier: tuple[RollBack, ...]) -> RollBack | str:
    """Return the roll back from a spike in the steps from ``start`` to ``at``, or the reason why none is possible.

    If these steps are of several phases, only batches of the last phase are left out. Process 0 decides for all
    processes.
    """
    if len(earlier) >= MOST:
        return f"it has rolled back {MOST} times"
    first, to = max(start, at - 1 - phases.locate(at - 1)[1]), None
    if distributed.is_first():
        to = newest_verified(workdir, [step for step in saved_steps(workdir) if step <= first])
    to = distributed.first_says("step to roll back to", to)
    return "there is no verified step before that" if to is None else RollBack(at, to, first, at - first)


def perform(workdir: str, back: RollBack, earlier: tuple[RollBack, ...]) -> None:
    """Drop the steps saved after ``back.to``, then record the roll back.

    If the run is killed between these two actions, it restarts from ``back.to`` and detects the spike again.
    """
    drop_after(workdir, back.to)
    if distributed.is_first():
        run_record.record(workdir, **{KEY: [dataclasses.asdict(one) for one in (*earlier, back)]})
    distributed.wait("rolled back")
