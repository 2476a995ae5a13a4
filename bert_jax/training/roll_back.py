"""Going back from a spike of the loss to a verified step of before, and leaving out the batches in which it came.

What was left out stands in ``run.json`` and in the facts of checkpoints. The rows of every step follow from it, so a
run that goes on, and every process of a job, reads the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from bert_jax.checkpoints.restoring import newest_verified, saved_steps
from bert_jax.checkpoints.saving import drop_after
from bert_jax.cluster import distributed
from bert_jax.reporting import run_record
from bert_jax.rows.phases import Phases

MOST = 10  # of a run; a loss that still leaps has another reason than its rows
KEY = "rolled_back"  # in run.json


@dataclasses.dataclass(frozen=True)
class RollBack:
    """One that was made, or is to be made."""

    at: int  # steps done when the spike was seen
    to: int  # the step that it went back to
    first: int  # the step whose batch, with those after it, is left out
    number: int  # of batches


def recorded(run: Mapping[str, Any]) -> tuple[RollBack, ...]:
    """Those of a run."""
    return tuple(RollBack(**entry) for entry in run.get(KEY, []))


def without_windows(phases: Phases, made: tuple[RollBack, ...]) -> Phases:
    """``phases`` without the batches that were left out."""
    return dataclasses.replace(phases, left_out=tuple((back.first, back.number) for back in made))


def planned(workdir: str, phases: Phases, at: int, begun: int, made: tuple[RollBack, ...]) -> RollBack | str:
    """The roll back from a spike in the window of steps from ``begun`` to ``at``, as far as it lies in one phase; or
    why there is none. Of several processes the first finds it for all."""
    if len(made) >= MOST:
        return f"it has rolled back {MOST} times"
    first, to = max(begun, at - 1 - phases.locate(at - 1)[1]), None
    if distributed.is_first():
        to = newest_verified(workdir, [step for step in saved_steps(workdir) if step <= first])
    to = distributed.first_says(f"roll back {len(made) + 1}, from step {at}", to)
    return "there is no verified step from before" if to is None else RollBack(at, to, first, at - first)


def perform(workdir: str, back: RollBack, made: tuple[RollBack, ...]) -> None:
    """Drop the steps saved after ``back.to``, then record it: a run that is killed between the two goes on from there
    and finds the spike again."""
    drop_after(workdir, back.to)
    if distributed.is_first():
        run_record.record(workdir, **{KEY: [dataclasses.asdict(one) for one in (*made, back)]})
    distributed.wait(f"rolled back {len(made) + 1}")


def message(back: RollBack) -> str:
    """What was done, in a line."""
    batches = f"the {back.number:,} batches from step {back.first:,} on are left out"
    return f"rolled back from step {back.at:,} to {back.to:,}; {batches}"
