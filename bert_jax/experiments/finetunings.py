"""Checks a fine-tuning before a grid's first run, and counts its work."""

from __future__ import annotations

from collections.abc import Mapping

from bert_jax.errors import UserError, few
from bert_jax.examples.splits import train_split
from bert_jax.recipes.task_settings import at_task
from bert_jax.runs.finetuning import Finetuning, Splits
from bert_jax.task import Task
from bert_jax.tasks.several import each_task
from bert_jax.training.experiment import Experiment


def check_and_count(checked: Finetuning, every: Mapping[str, Splits]) -> float:
    """Return the FLOPs of a run (``flops``); no step is made.

    Args:
      every: the splits of each task, with all of train.

    Raises:
      UserError: the examples do not fit the task, the model or the machine, or ``config.data.train_fraction`` leaves a
        label without an example to learn it from.
    """
    task, experiment = checked.with_examples(every)
    for name, one in each_task(task).items():
        train = train_split(every[name])
        there, kept = every[name][train], one.setting.splits[train]
        seen, left = ({answer for e in examples for answer in one.answer_names(e)} for examples in (there, kept))
        if missing := sorted(seen - left):
            with at_task(name):
                raise UserError(
                    f"config.data.train_fraction={checked.tasks[name].settings.data.train_fraction:g} keeps "
                    f"{len(kept):,} of {len(there):,} examples, and none of them has the label {few(missing)}; take a "
                    "larger fraction"
                )
    return flops(task, experiment)


def flops(task: Task, experiment: Experiment) -> float:
    """Return the FLOPs of the matrix products of a run, forward and backward, all rows at full length.

    The lengths of the phases are in steps.
    """
    found = 0.0
    for phase in experiment.phases.phases:
        rows = [of_row for kind, of_row in task.flops_per_row.items() if kind.partition("/")[0] == phase.kind]
        found += phase.num_steps * phase.batch_size * max(rows)
    return found
