"""Trains several tasks at once, with one encoder (MT-DNN, Liu et al. 2019, arXiv 1901.11504)."""

from __future__ import annotations

import copy
import dataclasses
import math
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import jax
import numpy as np

from bert_jax.configuration import nearest
from bert_jax.errors import UserError
from bert_jax.losses.distillation import FROZEN
from bert_jax.metric_names import MEAN, lower_is_better, titles_of
from bert_jax.records import Batch, Sum
from bert_jax.rows.dealt import DealtRows, buckets_of, deal
from bert_jax.rows.phases import Phase, steps_per_epoch
from bert_jax.task import Losses, RowSource, SingleTask, TaskOfSeveral, Variables
from bert_jax.tasks.base import KIND, ExampleTask, Setting
from bert_jax.tasks.mixing import Mixing

_SHARED = ("encoder", "pooler", FROZEN)  # parts of the parameters that all tasks have in common, and their teacher


class Member(SingleTask):
    """A task of several, as a ``bert_jax.task.Task`` whose names are unlike the names of the other tasks.

    Its metrics, held-out parts and kinds of batches are called "NAME/...". Parts of the parameters that no other task
    has are called "NAME_...". A step trains these parts and the shared parts.

    Attributes:
      task: the task itself, in which these names have no "NAME/" and no "NAME_".
      parts: name of a part of the parameters in the task -> its name among the parameters of all.
    """

    def __init__(
        self, name: str, task: ExampleTask, weight: float, frozen: tuple[str, ...], frozen_for_all: tuple[str, ...]
    ):
        """
        Args:
          weight: multiplies the loss.
          frozen: parts, by their names in the task, that a step on this task does not update.
          frozen_for_all: parts, by their names among the parameters of all, that no task trains.

        Raises:
          UserError: ``frozen`` names a part that the task does not have.
        """
        self.name, self.task = name, copy.copy(task)
        own = {part: outside(name, part) for part in ("encoder", *(part.name for part in task.model.parts))}
        for_all = tuple(part for part, whole in own.items() if whole in frozen_for_all)
        self.task.setting = dataclasses.replace(task.setting, frozen=for_all)
        variables = jax.eval_shape(self.task.init, jax.random.key(0))
        self.parts = {part: outside(name, part) for tree in variables for part in tree}
        if unknown := [part for part in frozen if part not in self.parts]:
            where = f"config.tasks.{name}.frozen"
            raise UserError(f"{where} names {unknown[0]!r}; {nearest(unknown[0], self.parts)}")
        self.trains = frozenset(self.parts[part] for part in variables.params if part not in frozen)
        self.kinds = {kind: f"{name}{kind.removeprefix(KIND).replace('_', '/')}" for kind in task.lengths}
        self.batch_specs = {self.kinds[kind]: spec for kind, spec in task.batch_specs.items()}
        self.flops_per_row = {self.kinds[kind]: flops for kind, flops in task.flops_per_row.items()}
        self.loss_weights = {f"{name}/{term}": weight * value for term, value in task.loss_weights.items()}
        self.dtype, self.whole_batches = task.dtype, task.whole_batches
        self.gathered_outputs = task.gathered_outputs
        self.heldout_parts = tuple(f"{name}/{split}" for split in task.heldout_parts)
        main = f"{name}/{task.main_metric}"
        titles = {f"{name}/{metric}": title and f"{name}: {title}" for metric, title in titles_of(task).items()}
        self.main_metric = main
        self.titles = ({main: titles[main]} if main in titles else {}) | titles

    def source(self, split: Literal["train", "eval"], kind: str, phase: int, part: str | None = None) -> RowSource:
        del kind
        source = self.task.source(split, KIND, phase, None if part is None else part.removeprefix(f"{self.name}/"))
        if split == "eval":
            return source
        buckets = (dataclasses.replace(one, kind=self.kinds[one.kind]) for one in buckets_of(source, KIND))
        return DealtRows([(source, tuple(buckets))])

    def init(self, rng: Any) -> Variables:
        rng = jax.random.fold_in(rng, zlib.crc32(self.name.encode()))  # no two tasks draw the same values
        params, frozen = ({self.parts[part]: x for part, x in tree.items()} for tree in self.task.init(rng))
        return Variables(params, frozen)

    def loss(self, variables: Variables, batch: Batch, rng: Any) -> Losses:
        terms, metrics, _ = self.task.loss(self._own(variables), batch, rng)
        tokens = {"tokens": metrics.pop("tokens")}
        return Losses(self._named(terms), self._named(metrics) | tokens)

    def outputs(self, variables: Variables, batch: Batch) -> dict[str, Any]:
        return self.task.outputs(self._own(variables), batch)

    def summary(self, sums: dict[str, Sum]) -> dict[str, float]:
        start = f"{self.name}/"
        own = {metric.removeprefix(start): one for metric, one in sums.items() if metric.startswith(start)}
        rest = {metric: one for metric, one in sums.items() if "/" not in metric}
        return self._named(self.task.summary(own)) | self.task.summary(rest)

    def baselines(self, kind: str, num_rows: int) -> dict[str, float]:
        del kind
        return self._named(self.task.baselines(KIND, num_rows))

    def finish(self, part: str, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        return self._named(self.task.finish(part.removeprefix(f"{self.name}/"), outputs))

    def _own(self, variables: Variables) -> Variables:
        return Variables(
            *({own: tree[whole] for own, whole in self.parts.items() if whole in tree} for tree in variables)
        )

    def _named(self, tree: Mapping[str, Any]) -> dict[str, Any]:
        return {f"{self.name}/{name}": value for name, value in tree.items()}


class SeveralTasks(TaskOfSeveral[Member]):
    """A ``bert_jax.task.Task`` of several tasks with one encoder: each batch is of one task."""

    def __init__(self, members: Mapping[str, Member], mixing: Mixing, phase: Phase, frozen: tuple[str, ...] = ()):
        """
        Args:
          phase: the only phase, of which the batch size and the length are read.
          frozen: the parts that no task trains.

        Raises:
          UserError: no task has a part of ``frozen``, or two tasks have parts of one name.
        """
        self.members, self._mixing, self._phase = members, mixing, phase
        every = [whole for one in members.values() for whole in one.parts.values() if whole not in _SHARED]
        if twice := [name for name in every if every.count(name) > 1]:
            raise UserError(f"config.tasks has two tasks with a part called {twice[0]}; give one of them another name")
        if unknown := [name for name in frozen if name not in (*_SHARED, *every)]:
            raise UserError(f"config.frozen names {unknown[0]!r}; {nearest(unknown[0], (*_SHARED, *every))}")
        kinds = {kind: one for one in members.values() for kind in one.batch_specs}
        super().__init__(kinds, {KIND: {part: name for name, one in members.items() for part in one.heldout_parts}})
        self.flops_per_row[KIND] = self._mean_flops()
        mains = {one.main_metric: one.titles.get(one.main_metric, "") for one in members.values()}
        self.main_metric = mean_of(mains)
        self.titles = {self.main_metric: "Mean of the tasks"} if self.main_metric else {}
        self.titles |= {metric: title for metric, title in mains.items() if title}
        self.titles |= {name: title for one in members.values() for name, title in one.titles.items()}

    @property
    def notes(self) -> list[str]:
        """Lines about the examples, for the user."""
        return [f"{name}: {line}" for name, one in self.members.items() for line in one.task.notes]

    def source(self, split: Literal["train", "eval"], kind: str, phase: int, part: str | None = None) -> RowSource:
        return self._dealt(phase) if split == "train" else self._of[kind].source(split, kind, phase, part)

    def _dealt(self, phase: int) -> DealtRows:
        sources = {name: one.source("train", name, phase) for name, one in self.members.items()}
        size = self._phase.batch_size
        batches = {name: round(steps_per_epoch(0, source.buckets, size)) for name, source in sources.items()}
        epochs = self._phase.num_epochs or self._phase.num_steps / sum(batches.values())
        return deal(sources, self._mixing.passes(batches, math.ceil(epochs)))

    def describe(self) -> str:
        """Return a line with the number of batches of each task in the first epoch, and in the last if it differs."""
        lines = []
        for end in (0, -1):
            numbers = dict.fromkeys(self.members, 0.0)
            for bucket in self._dealt(0).buckets:
                batches = -(-bucket.rows_per_epoch // (self._phase.batch_size * bucket.batches))
                numbers[self.of(bucket.kind).name] += float(batches * bucket.passes[end])
            lines.append(", ".join(f"{name} {number:,.4g}" for name, number in numbers.items()))
        return f"batches of an epoch: {lines[0]}" + (f"; of the last: {lines[1]}" if lines[1] != lines[0] else "")

    def _mean_flops(self) -> float:
        """Return the mean of the FLOPs of a row over the rows of the first epoch."""
        buckets = self._dealt(0).buckets
        rows = [bucket.rows_per_epoch * bucket.passes[0] for bucket in buckets]
        return float(np.average([self.flops_per_row[bucket.kind] for bucket in buckets], weights=rows))

    def evaluated(self, metrics: dict[str, float]) -> dict[str, float]:
        """Return ``NAME/metric``, with several dev splits also ``NAME/metric/SPLIT``, and the mean of the main metrics.

        The mean and the main metrics come first.
        """
        found: dict[str, float] = {}
        for metric, value in metrics.items():
            one = self.members[metric.partition("/")[0]]
            split = next((part for part in one.heldout_parts if metric.endswith(f"/{part}")), None)
            if split is not None:
                of_split = "" if len(one.heldout_parts) == 1 else split.removeprefix(one.name)
                metric = metric.removesuffix(f"/{split}") + of_split
            found[metric] = value
        mains = {one.main_metric: found[one.main_metric] for one in self.members.values()}
        mean = {self.main_metric: float(np.mean([*mains.values()]))} if self.main_metric else {}
        return mean | mains | found


def mean_of(metrics: Iterable[str]) -> str:
    """Return the name of the mean of the tasks' main metrics; "" if a lower value of some main metric is better."""
    return "" if any(map(lower_is_better, metrics)) else MEAN


def each_task(task: ExampleTask | SeveralTasks) -> dict[str, ExampleTask]:
    """Return the tasks by name; the name of an only task is ""."""
    return {name: one.task for name, one in task.members.items()} if isinstance(task, SeveralTasks) else {"": task}


def shared_setting(task: ExampleTask | SeveralTasks) -> Setting:
    """Return the setting of the only or the first task, for what all tasks share: tokenizer, model and lengths."""
    return next(iter(each_task(task).values())).setting


def outside(name: str, part: str) -> str:
    """Return the name that a part of the task ``name`` has among the parameters of all."""
    return part if part in _SHARED else f"{name}_{part}"
