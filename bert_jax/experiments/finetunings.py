"""Checks the examples of a fine-tuning before the first run of a grid."""

from __future__ import annotations

from collections.abc import Mapping

from bert_jax.errors import UserError, few
from bert_jax.examples.load import DataConfig
from bert_jax.examples.splits import train_split
from bert_jax.records import Example
from bert_jax.tasks.base import ExampleTask
from bert_jax.tasks.several import SeveralTasks, each_task


def check_labels(
    task: ExampleTask | SeveralTasks,
    data: Mapping[str, DataConfig],
    every: Mapping[str, Mapping[str, tuple[Example, ...]]],
) -> None:
    """Raise ``UserError`` if ``train_fraction`` leaves a label without an example to learn it from.

    Args:
      task: the task, or several by name, on the examples that are trained on.
      data: the keys of each task's examples.
      every: the splits of each task, with all of train.
    """
    for name, one in each_task(task).items():
        train = train_split(every[name])
        there, kept = every[name][train], one.setting.splits[train]
        seen, left = ({answer for e in examples for answer in one.answer_names(e)} for examples in (there, kept))
        if missing := sorted(seen - left):
            raise UserError(
                f"config.{f'tasks.{name}.' if name else ''}data.train_fraction={data[name].train_fraction:g} keeps "
                f"{len(kept):,} of {len(there):,} examples, and none of them has the label {few(missing)}; take a "
                "larger fraction"
            )
