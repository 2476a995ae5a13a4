"""The stages of several pretraining tasks (ERNIE 2.0; Sun et al. 2020): the phases of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from bert_jax.configuration import choose
from bert_jax.errors import UserError

Steps = Mapping[str, Sequence[int]]  # task -> its steps in each stage


def phases(
    schedule: str, allocation: Steps, tasks: Mapping[str, Mapping[str, Any]], phase: Mapping[str, Any]
) -> ConfigDict:
    """Return ``config.phases`` of a schedule: stage1, stage2, and so on, each with its tasks as members.

    continual:   a stage has the tasks that have steps in its column: stage n the tasks 1 to n, in a table such as

                     masking         (20, 10, 10, 10)
                     capitals        (0, 30, 10, 10)
                     token_document  (0, 0, 40, 10)
                     reordering      (0, 0, 0, 50)

    sequential:  stage n has task n alone, for all steps of its row.
    joint:       one stage has all tasks, for all steps.

    The batches of a stage are dealt to its tasks at random, in proportion to their steps.

    Args:
      allocation: task, in order -> its steps in each stage. The rows have one sum, so that no schedule favours a task.
      tasks: task -> the keys of its objective: ``name``, and its options.
      phase: the keys that all stages have, such as ``batch_size``.

    Raises:
      UserError: the schedule is unknown, or the table does not fit the tasks or itself.
    """
    _check(allocation, tasks)
    totals = {task: sum(steps) for task, steps in allocation.items()}
    columns = [dict(zip(allocation, column, strict=True)) for column in zip(*allocation.values(), strict=True)]
    table = {"continual": columns, "sequential": [{task: total} for task, total in totals.items()], "joint": [totals]}
    stages = ConfigDict()
    for number, steps in enumerate(choose("schedule of stages", schedule, table), start=1):
        of_stage = {task: count for task, count in steps.items() if count}
        members = {task: {**tasks[task], "share": count} for task, count in of_stage.items()}
        objective = {"members": members} if len(members) > 1 else dict(tasks[next(iter(of_stage))])
        stages[f"stage{number}"] = {"num_steps": sum(of_stage.values()), **phase, "objective": objective}
    return stages


def _check(allocation: Steps, tasks: Mapping[str, Any]) -> None:
    """Raise ``UserError`` unless each task has a row of steps, all rows have one sum, and each stage a task."""
    if not allocation or allocation.keys() != tasks.keys():
        raise UserError(
            f"the stages have steps for {', '.join(allocation) or 'no task'}, and objectives for "
            f"{', '.join(tasks) or 'no task'}; give each task both"
        )
    for task, steps in allocation.items():
        if not isinstance(steps, Sequence):
            raise UserError(f"the stages give {task} {steps!r} steps; a tuple with the steps of each stage is needed")
        if wrong := [count for count in steps if type(count) is not int or count < 0]:
            raise UserError(f"the stages give {task} {wrong[0]!r} steps; whole numbers of 0 or more are needed")
    if len({len(steps) for steps in allocation.values()}) > 1:
        raise UserError(f"{_rows(allocation, len)} stages; give each task a number for each stage, 0 where it rests")
    if len({sum(steps) for steps in allocation.values()}) > 1:
        raise UserError(f"{_rows(allocation, sum)} steps in all stages; give each task the same sum")
    for number, column in enumerate(zip(*allocation.values(), strict=True), start=1):
        if not any(column):
            raise UserError(
                f"stage {number} has no steps of any task; leave its column out, or give a task steps in it"
            )
    if not any(map(sum, allocation.values())):
        raise UserError("the stages have no columns; give each task its steps in each stage")


def _rows(allocation: Steps, measure: Any) -> str:
    """Return ``measure`` of each row, such as ``masking has 50,000, capitals 40,000``."""
    found = [f"{task} {measure(steps):,}" for task, steps in allocation.items()]
    return ", ".join(found).replace(" ", " has ", 1)
