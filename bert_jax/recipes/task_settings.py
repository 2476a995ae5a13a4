"""The tasks of a fine-tuning recipe: one, or several by name, with the keys of each."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from bert_jax import configuration
from bert_jax.errors import UserError
from bert_jax.examples.load import DataConfig
from bert_jax.parts import catalogue
from bert_jax.storage import files
from bert_jax.tasks.base import KIND, ExampleTask

_FREE_DATA_FIELDS = ("overlap",)
# Names that no task may have: parts and kinds of batches have them, or they would read like a metric.
_RESERVED = ("encoder", "pooler", "mean", KIND)
_METRIC_ENDS = ("loss", "perplexity", "error", "accuracy")


@dataclasses.dataclass(frozen=True)
class TaskSettings:
    """A task of a fine-tuning: an entry of ``config.tasks``, or the keys of a recipe with one task."""

    task: Mapping[str, Any]  # the task's name and its options
    data: DataConfig
    weight: float = 1.0  # multiplies the loss of the task
    frozen: tuple[str, ...] = ()  # parts that a step on this task does not update, such as encoder
    where: dataclasses.InitVar[str] = "config"

    def __post_init__(self, where: str) -> None:
        allowed = "a number above 0 is needed, 1e-6 to 1e6"
        configuration.check_fields(self, where, allowed, "weight", sound=lambda v: 1e-6 <= v <= 1e6)

    @functools.cached_property
    def built(self) -> tuple[type[ExampleTask], Any]:
        """The class of the task and its config. Raises ``UserError`` for a wrong key or value."""
        module = catalogue.find("tasks", self.task.get("name", ""), having="Task")
        return module.Task, configuration.build(module.Config, self.task, "config.task", also=("name",))

    def identity(self) -> dict[str, Any]:
        """Return the settings that a resumed run may not change."""
        tree = dataclasses.asdict(self)
        tree["task"] = configuration.complete(self.task, configuration.defaults(type(self.built[1])))
        tree["data"] = configuration.without(tree["data"], *_FREE_DATA_FIELDS)
        return tree


def predictions_file(task: str, split: str) -> str:
    """Return the name of the file with the predictions of a split; ``task`` is "" if the run has only one."""
    return f"predictions_{task}_{split}.jsonl" if task else f"predictions_{split}.jsonl"


def check_files(tasks: Mapping[str, TaskSettings]) -> None:
    """Raise ``UserError`` if the predictions of two splits would be one file, or the name of a file is too long."""
    found = dict[str, str]()
    for task, one in tasks.items():
        for split in (split for split in one.data.names if not split.startswith("train")):
            name, where = (
                predictions_file(task, split),
                f"config.{f'tasks.{task}.' if task else ''}data: the split {split}",
            )
            files.check_name(name, where)
            if name in found:
                raise UserError(f"{found[name]} and {where} would both be predicted into {name}; rename one of them")
            found[name] = where


@contextlib.contextmanager
def at_task(name: str) -> Iterator[None]:
    """Context manager: an error about ``config.task`` or ``config.data`` names the keys of the task ``name`` instead.

    If the name is "", the recipe has only one task, and the error stays.
    """
    try:
        yield
    except UserError as error:
        if not name or type(error) is not UserError:
            raise
        where, text = f"config.tasks.{name}", with_keys_of(name, str(error))
        raise UserError(text if where in text else f"{where}: {text}") from error


def with_keys_of(task: str, text: str) -> str:
    """Return ``text`` with the keys of ``task``, one of several, in place of ``config.task`` and ``config.data``."""
    return re.sub(r"\bconfig\.(task|data)\b", rf"config.tasks.{task}.\1", text) if task else text


def several_tasks(tasks: Mapping[str, Any]) -> dict[str, TaskSettings]:
    """Return the entries of ``config.tasks``, in alphabetical order.

    Raises ``UserError`` for a name that no task can have, and for a wrong key or value.
    """
    found = {}
    for name, values in sorted(tasks.items()):
        if not name.isidentifier():
            raise UserError(f"config.tasks has the name {name!r}; letters, digits (not first) and _ are allowed")
        if name in _RESERVED or name.endswith(_METRIC_ENDS):
            raise UserError(
                f"config.tasks has the name {name!r}; a task cannot be called {', '.join(_RESERVED)}, or end in "
                f"{', '.join(_METRIC_ENDS)}, which mean something else"
            )
        if not isinstance(values, Mapping):
            raise UserError(f"config.tasks.{name} is {values!r}; its keys are task and data")
        with at_task(name):
            found[name] = configuration.build(TaskSettings, _completed(values), f"config.tasks.{name}")
    return found


def _completed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of one of several tasks, with defaults for keys that are not given.

    By default it is a classification of the texts of a table, and a tenth of train is dev if the keys name no dev data.
    """
    data = values.get("data") or {}
    if not isinstance(data, Mapping):
        return dict(values)
    has_dev = any(split.startswith("dev") for split in data.get("splits") or ()) or data.get("split_column")
    fraction = {} if has_dev or data.get("dev_ids") else {"dev_fraction": 0.1}
    return configuration.complete(values, {"task": {"name": "classification"}, "data": {"format": "table"} | fraction})
