"""The interface ``Task``, which pretraining objectives and fine-tuning tasks both implement.

A Task has two sides: on the host it makes the features of a batch as numpy arrays, and on the devices it reads them as
jax arrays. One training loop, one train step, one checkpoint format and one loader serve every Task.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

from bert_jax.records import Batch, BatchSpec, Sum

if TYPE_CHECKING:
    import numpy as np


class Variables(NamedTuple):
    """The variables of a model. ``frozen`` has no optimizer state and is not saved in checkpoints."""

    params: Any
    frozen: Any


class Losses(NamedTuple):
    """The losses and metrics of one (micro-)batch, as sums and counts.

    The metric "tokens" is required: tokens per second are computed from it.
    """

    terms: dict[str, Sum]
    metrics: dict[str, Sum]


Measure: TypeAlias = "Callable[[Mapping[str, Any], Batch], Sum]"  # a function of a model's outputs and its batch


class Term(NamedTuple):
    """One term of a loss, averaged over the whole global batch, and what is measured beside it.

    Attributes:
      loss: returns scalars: the sum of the losses of the targets in a (micro-)batch, and the number of these targets.
        Labels and weights may come from outputs as well as from the batch. The number has to follow from the batch
        alone, because a step divides by that of the global batch (at least 1) before it computes micro-batches.
      weight: the weight of the term in the loss. If 0, the term is measured but does not train the model.
      measures: name -> what else is measured, in the same way; its number may depend on outputs. The metrics of a term
        are ``<term>_loss`` and ``<term>_<name>``, those of a term named "" are ``loss`` and ``<name>``.
      baseline: with what pretraining compares the term: "cloze" with n-gram models of unweighted masked tokens,
        "majority" with the most common label of a ``CrossEntropy`` (``models.losses``).
    """

    loss: Measure
    weight: float = 1.0
    measures: Mapping[str, Measure] = {}
    baseline: Literal["cloze", "majority", "none"] = "none"


def measure(terms: Mapping[str, Term], outputs: Mapping[str, Any], batch: Batch) -> Losses:
    """Return the losses of ``terms`` and their metrics, without the metric "tokens"."""
    losses: dict[str, Sum] = {}
    metrics: dict[str, Sum] = {}
    for name, term in terms.items():
        metrics_of = f"{name}_" if name else ""
        losses[name] = metrics[f"{metrics_of}loss"] = term.loss(outputs, batch)
        metrics |= {f"{metrics_of}{metric}": function(outputs, batch) for metric, function in term.measures.items()}
    return Losses(losses, metrics)


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
    """The rows of one length, of a source whose rows have several lengths."""

    kind: str  # a key of Task.batch_specs
    rows_per_epoch: int
    batches: int  # batch size of this bucket / batch size of the phase: shorter rows come in larger batches


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


class Task(Protocol):
    """A pretraining objective or a downstream task: its rows, its model and its losses."""

    batch_specs: dict[str, BatchSpec]  # kind of batch -> features of a row; each kind is compiled separately
    loss_weights: dict[str, float]  # term -> weight in the total loss
    flops_per_row: dict[str, float]  # kind of batch -> FLOPs of one row in a train step, for MFU
    dtype: str  # dtype of the operands of the model's matrix products
    whole_batches: bool  # whether a row's loss depends on the other rows of its batch, as with in-batch negatives

    heldout_parts: tuple[str, ...]  # parts of the held-out rows, each also evaluated alone; ("",) if only one
    gathered_outputs: tuple[str, ...]  # names of ``outputs`` that ``finish`` reads; () if sums are enough

    def source(self, split: Literal["train", "eval"], kind: str, phase: int, part: str | None = None) -> RowSource:
        """Return the rows of a split, or only of one held-out part.

        The ``eval`` rows are the same at every evaluation.
        """
        ...

    def init(self, rng: Any) -> Variables:
        """Return newly initialised variables, with every leaf boxed with its logical axes."""
        ...

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
        """Return the mean of each sum, and metrics computed from the means, such as a perplexity."""
        ...

    def baselines(self, kind: str, num_rows: int) -> dict[str, float]:
        """Return scores of simple models (unigram, majority, ...) on the first ``num_rows`` rows of the evaluation."""
        ...

    def finish(self, part: str, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        """Return the metrics that only the host can compute, from the outputs for all rows of a held-out part.

        Args:
          outputs: ``gathered_outputs`` and ``example_ids``, each [rows of the part, ...], in the order of the part's
            rows.
        """
        ...
