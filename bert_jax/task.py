"""The interface ``Task``, which pretraining objectives and fine-tuning tasks both implement.

A Task has two sides: on the host it makes the features of a batch as numpy arrays, and on the devices it reads them as
jax arrays. One training loop, one train step, one checkpoint format and one loader serve every Task.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Protocol, Self, TypeAlias, TypeVar

from bert_jax.metric_names import TOTAL
from bert_jax.records import Batch, BatchSpec, Feature, Sum

if TYPE_CHECKING:
    import numpy as np


class Variables(NamedTuple):
    """The variables of a model. ``frozen`` has no optimizer state and is not saved in checkpoints.

    It is a dict: the parts of the model that are not trained, or what an objective reads beside its model.
    """

    params: Any
    frozen: Any


class Losses(NamedTuple):
    """The losses and metrics of one (micro-)batch, as sums and counts.

    The metric "tokens" is required: tokens per second are computed from it. ``memory`` has the arrays [B, ...] that
    ``BatchTask.memory`` declares, as the next batch reads them.
    """

    terms: dict[str, Sum]
    metrics: dict[str, Sum]
    memory: Mapping[str, Any] = {}


Measure: TypeAlias = "Callable[[Mapping[str, Any], Batch], Sum]"  # a function of a model's outputs and its batch


class Term(NamedTuple):
    """One term of a loss, averaged over the whole global batch, and what is measured beside it.

    Attributes:
      loss: returns scalars: the sum of the losses of the targets in a (micro-)batch, and the number of these targets.
        Labels and weights may come from outputs as well as from the batch. The number has to follow from the batch
        alone, because a step divides by the number of the global batch (at least 1) before it computes micro-batches.
      weight: the weight of the term in the loss. If 0, the term is measured but does not train the model.
      measures: name -> a function of this form for another metric; its number may depend on outputs. The metrics of
        a term are ``<term>_loss`` and ``<term>_<name>``, the metrics of a term named "" are ``loss`` and ``<name>``.
      baseline: with what pretraining compares the term: "cloze" with n-gram models of unweighted masked tokens,
        "majority" with the most common label of a ``CrossEntropy`` (``losses.cross_entropy``).
    """

    loss: Measure
    weight: float = 1.0
    measures: Mapping[str, Measure] = {}
    baseline: Literal["cloze", "majority", "none"] = "none"


def total_metric(task: BatchTask) -> str:
    """Return the metric that is the weighted sum of a task's terms: ``loss``, or ``TOTAL`` if a term has this name.

    So a metric means the same in training and in an evaluation.
    """
    return TOTAL if "" in task.loss_weights and len(task.loss_weights) > 1 else "loss"


def _prefix(term: str) -> str:
    return f"{term}_" if term else ""


def measures(terms: Mapping[str, Term]) -> dict[str, Measure]:
    """Return the functions that measure ``terms``, by the names of their metrics: losses and other measures."""
    found: dict[str, Measure] = {}
    for name, term in terms.items():
        found[f"{_prefix(name)}loss"] = term.loss
        found |= {f"{_prefix(name)}{metric}": function for metric, function in term.measures.items()}
    return found


def measure_terms(terms: Mapping[str, Term], outputs: Mapping[str, Any], batch: Batch) -> Losses:
    """Return the losses of ``terms`` and their metrics, without the metric "tokens"."""
    metrics = {name: function(outputs, batch) for name, function in measures(terms).items()}
    return Losses({name: metrics[f"{_prefix(name)}loss"] for name in terms}, metrics)


@dataclasses.dataclass(frozen=True)
class Step:
    """The rows that a training step reads. Each row is a pure function of its epoch and its index."""

    number: int  # the step, counted through all phases
    kind: str  # a key of Task.batch_specs
    phase: int
    epochs: np.ndarray  # [B] int64, the epoch of each row: a batch may have rows of two epochs
    rows: np.ndarray  # [B] int64, the index of each row within its epoch


@dataclasses.dataclass(frozen=True)
class Bucket:
    """The rows of one length, or of one of several sources, which have batches of their own."""

    kind: str  # a key of Task.batch_specs
    rows_per_epoch: int
    # batch size of this bucket / batch size of the phase: shorter rows come in larger batches, packed ones in smaller
    batches: int | Fraction
    # How often each epoch of the phase reads the rows of an epoch of this bucket, on average. The last entry counts for
    # all later epochs too. An epoch of the phase has as many batches as the first one.
    passes: tuple[float, ...] = (1.0,)


class RowSource(abc.ABC):
    """Random access to rows by epoch and index. The loader keeps no other state than the step number."""

    @property
    @abc.abstractmethod
    def rows_per_epoch(self) -> int:
        """Return the number of rows of an epoch, which is the same for every epoch."""

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """Return the buckets of the rows; () if all rows have one length.

        Row indices are numbered bucket by bucket: first all rows of the first bucket, then all of the second, and so
        on. All rows of a step come from one bucket.
        """
        return ()

    def prepare(self, epoch: int) -> None:
        """Begin to plan ``epoch`` in the background. A source without plans does nothing."""
        del epoch

    def for_batches(self, batch_size: int) -> RowSource:
        """Return the same rows, dealt for batches of ``batch_size`` rows; by default the source itself.

        A source of lanes (``rows.lanes``) deals the rows of a batch to the lanes of a text.
        """
        del batch_size
        return self

    @abc.abstractmethod
    def rows(self, epochs: np.ndarray, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Return the rows ``indices`` [n] of ``epochs`` [n] as arrays with a leading axis n.

        A row is a pure function of (corpus fingerprint, seed, phase, epoch, index), so it does not depend on the other
        rows requested. If ``is_weight`` holds for the name of an array, its values are weights of targets: the
        evaluation sets them to 0 in the rows that only fill up its last batch.
        """


def is_weight(name: str) -> bool:
    """Return whether a feature of a batch holds weights of targets, as its name shows (``masked_weights``)."""
    return name.endswith("_weights")


class BatchTask(Protocol):
    """The task of one kind of batches: all that a step, an evaluation or a plan of this kind reads."""

    dtype: str  # dtype of the operands of the model's matrix products
    loss_weights: dict[str, float]  # term -> weight in the total loss
    whole_batches: bool  # whether a row's loss depends on the other rows of its batch, as with in-batch negatives
    gathered_outputs: tuple[str, ...]  # names of ``outputs`` that ``finish`` reads; () if sums are enough
    # Names at the top of the parameters that a step updates; None: all. It computes no gradient of the others, and
    # these keep their bits, and so does their state in the optimizer: no momentum moves them, nothing decays, and no
    # count goes on.
    trains: frozenset[str] | None
    # Arrays of a row that one batch hands on to the next: name -> shape and dtype without the axis B. A step adds them
    # to its batch under these names, zeros in rows whose feature ``lane_starts`` [B] is 1, and keeps what ``loss``
    # returns as ``Losses.memory``. They have no gradient. {} for most tasks.
    memory: Mapping[str, Feature]

    def loss(self, variables: Variables, batch: Batch, rng: Any) -> Losses:
        """Run the forward pass and return the losses. Their counts have to follow from the batch alone.

        ``rng`` is a ``models.dropout.RowRng``, or None for no dropout. The train step multiplies the value of each term
        by its weight / its count over the whole global batch, and sums over terms and micro-batches.
        """
        ...

    def outputs(self, variables: Variables, batch: Batch) -> dict[str, Any]:
        """Return the named arrays [B, ...] that prediction, fill-mask and distillation read."""
        ...

    def summary(self, sums: dict[str, Sum]) -> dict[str, float]:
        """Return the mean of each sum, and metrics computed from the means, such as a perplexity.

        ``sums`` may have names of other kinds of batches too, and lack some names of this kind.
        """
        ...

    def finish(self, part: str, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        """Return the metrics that only the host can compute, from the outputs for all rows of a held-out part.

        Args:
          outputs: ``gathered_outputs`` and ``example_ids``, each [rows of the part, ...], in the order of the part's
            rows.
        """
        ...


class Task(Protocol):
    """A pretraining objective or a downstream task: its rows, its model and its losses.

    A task has kinds of batches: phases, row lengths, members of a mixture. ``of(kind)`` is the task of one kind. An
    objective or a task that reads all kinds in one way is both (``SingleTask``).
    """

    batch_specs: dict[str, BatchSpec]  # kind of batch -> features of a row; each kind is compiled separately
    flops_per_row: dict[str, float]  # kind of batch -> FLOPs of one row in a train step, for MFU
    dtype: str  # dtype of the operands of the model's matrix products, in all kinds

    def of(self, kind: str) -> BatchTask:
        """Return the task of one kind of batch, the same object at every call."""
        ...

    def heldout(self, phase: str) -> dict[str, str]:
        """Return the parts of the held-out rows that an evaluation of a phase reads: name -> the kind of its rows.

        If there are several, each is also evaluated alone.
        """
        ...

    def reader(self, kind: str, phase: str) -> BatchTask:
        """Return the task that reads held-out rows of ``kind`` while the phase ``phase`` is trained.

        It is the task of ``kind``, with the changes that the phase makes in the model.
        """
        ...

    def source(self, split: Literal["train", "eval"], kind: str, phase: int, part: str | None = None) -> RowSource:
        """Return the rows of a split, or only of one held-out part.

        The ``eval`` rows are the same at every evaluation.
        """
        ...

    def init(self, rng: Any) -> Variables:
        """Return newly initialised variables, with every leaf boxed with its logical axes.

        Frozen variables that are numpy arrays are known already: each device gets a copy.
        """
        ...

    def baselines(self, kind: str, num_rows: int) -> dict[str, float]:
        """Return scores of simple models (unigram, majority, ...) on the first ``num_rows`` rows of the evaluation."""
        ...

    def evaluated(self, metrics: dict[str, float]) -> dict[str, float]:
        """Return the metrics of an evaluation, of all parts, under the names that a user reads."""
        ...


class SingleTask:
    """The part of a ``Task`` about kinds of batches, for a task that reads all of them in one way.

    Its ``summary`` has means alone.
    """

    heldout_parts: tuple[str, ...]  # names of the parts of the held-out rows; ("",) if there is only one
    trains: frozenset[str] | None = None
    memory: Mapping[str, Feature] = {}

    def of(self, kind: str) -> Self:
        del kind
        return self

    def heldout(self, phase: str) -> dict[str, str]:
        return dict.fromkeys(self.heldout_parts, phase)

    def reader(self, kind: str, phase: str) -> Any:
        del phase
        return self.of(kind)

    def summary(self, sums: dict[str, Sum]) -> dict[str, float]:
        return {name: one.mean() for name, one in sums.items()}

    def evaluated(self, metrics: dict[str, float]) -> dict[str, float]:
        return metrics


class _Single(Task, BatchTask, Protocol): ...


Single = TypeVar("Single", bound=_Single)


class TaskOfSeveral(abc.ABC, Generic[Single]):
    """A ``Task`` made of several, which share a model: each kind of batch is read by one of these tasks (``of``).

    The model has the parts of all tasks; a part that two tasks have is one part. A phase of training has one task, or
    deals its batches to several tasks.
    """

    def __init__(self, tasks: Mapping[str, Single], heldout: Mapping[str, Mapping[str, str]]):
        """
        Args:
          tasks: kind of batch -> the task that reads it.
          heldout: phase of several tasks -> held-out part -> the kind of the part's rows.
        """
        self._of, self._heldout = tasks, heldout
        self.batch_specs = {kind: one.batch_specs[kind] for kind, one in tasks.items()}
        self.flops_per_row = {kind: one.flops_per_row[kind] for kind, one in tasks.items()}
        self.dtype = next(iter(tasks.values())).dtype

    def of(self, kind: str) -> Single:
        return self._of[kind]

    def heldout(self, phase: str) -> dict[str, str]:
        return dict(self._heldout[phase]) if phase in self._heldout else self._of[phase].heldout(phase)

    def reader(self, kind: str, phase: str) -> Single:
        del phase
        return self._of[kind]

    @abc.abstractmethod
    def source(self, split: Literal["train", "eval"], kind: str, phase: int, part: str | None = None) -> RowSource:
        """Return the rows of a split, or only of one held-out part."""

    def init(self, rng: Any) -> Variables:
        """Return the variables of all tasks; what several tasks have is as the first of these tasks makes it.

        A part may have parameters that only some tasks run, such as a decoder.
        """
        every = [one.init(rng) for one in tasks_of(self).values()]
        params = functools.reduce(_joined, (one.params for one in every))
        return Variables(params, {name: x for one in reversed(every) for name, x in one.frozen.items()})

    def baselines(self, kind: str, num_rows: int, part: str | None = None) -> dict[str, float]:
        """Return the baselines of the tasks of a phase, or of the task of a held-out ``part``.

        A baseline that several tasks have is left out, unless it is the same for all of them.
        """
        kinds = dict.fromkeys(one for name, one in self.heldout(kind).items() if part in (None, name))
        every = [self._of[one].baselines(one, num_rows) for one in kinds]
        return {
            name: value
            for found in every
            for name, value in found.items()
            if {other.get(name, value) for other in every} == {value}
        }

    def evaluated(self, metrics: dict[str, float]) -> dict[str, float]:
        return metrics


def _joined(first: Any, other: Any) -> Any:
    """Return the tree ``first`` with the branches that only ``other`` has."""
    if not isinstance(first, dict):
        return first
    joined = {name: _joined(tree, other[name]) if name in other else tree for name, tree in first.items()}
    return {**other, **joined}


def tasks_of(task: Task) -> dict[str, Any]:
    """Return the different tasks of the kinds of a task, each by its first kind."""
    found: dict[str, BatchTask] = {}
    for kind in task.batch_specs:
        one = task.of(kind)
        if all(one is not other for other in found.values()):
            found[kind] = one
    return found


def needs_whole_batches(task: Task) -> bool:
    """Return whether the losses of a batch's rows depend on each other in any kind of batch."""
    return any(one.whole_batches for one in tasks_of(task).values())


def summary_of(tasks: Iterable[BatchTask], sums: dict[str, Sum]) -> dict[str, float]:
    """Return the metrics of sums to which ``tasks``, the tasks of some kinds of batches, may have added.

    Of several tasks, metrics without any target are left out, since no batch of their kind may have come, and so are
    metrics for which two tasks give different results, such as the perplexities of two losses.
    """
    different = list({id(task): task for task in tasks}.values())
    if len(different) == 1:
        return different[0].summary(sums)
    counted = {name: one for name, one in sums.items() if float(one.count) > 0}
    found = [task.summary(counted) for task in different]
    every = {name: [means[name] for means in found if name in means] for means in found for name in means}
    return {name: values[0] for name, values in every.items() if len({repr(value) for value in values}) == 1}
