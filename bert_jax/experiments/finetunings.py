"""Checks the examples of a fine-tuning before the first run of a grid."""

from __future__ import annotations

from collections.abc import Mapping

from bert_jax.errors import UserError, few
from bert_jax.examples.splits import train_split
from bert_jax.recipes.finetuning_settings import FinetuningSettings
from bert_jax.records import Example
from bert_jax.tasks.base import ExampleTask
from bert_jax.tasks.several import SeveralTasks, each_task


def check_labels(
    task: ExampleTask | SeveralTasks,
    settings: FinetuningSettings,
    every: Mapping[str, Mapping[str, tuple[Example, ...]]],
) -> None:
    """Raise ``UserError`` if ``train_fraction`` leaves a label without an example to learn it from.

    Args:
      task: the task, or several tasks by name, with the examples of training.
      every: the splits of each task, with the whole split train.
    """
    for name, one in each_task(task).items():
        train = train_split(every[name])
        there, kept = every[name][train], one.setting.splits[train]
        seen, left = ({answer for e in examples for answer in one.answer_names(e)} for examples in (there, kept))
        if missing := sorted(seen - left):
            key, fraction = f"tasks.{name}.data" if name else "data", settings.each[name].data.train_fraction
            raise UserError(
                f"config.{key}.train_fraction={fraction:g} keeps {len(kept):,} of {len(there):,} examples, and none of "
                f"them has the label {few(missing)}; take a larger fraction"
            )
