"""The one contract: a pretraining objective and a fine-tuning task are the same thing, a ``Task``.

A Task owns both ends of the batch: the host side that writes the features and the device side that reads them. One
loop, one step, one checkpoint format and one loader serve every Task. Numpy lies left of the mesh, jax right of it.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from bert_jax.records import Batch, BatchSpec, Sum

if TYPE_CHECKING:
    import numpy as np


class Variables(NamedTuple):
    """The variables of a model. ``frozen`` has no optimizer state and is not part of a checkpoint."""

    params: Any
    frozen: Any


class Losses(NamedTuple):
    """The result of one (micro-)batch, as sums and counts. The rate per second counts the metric "tokens"."""

    terms: dict[str, Sum]
    metrics: dict[str, Sum]
    carry: Any


@dataclasses.dataclass(frozen=True)
class Step:
    """The rows that a training step reads. Each row is a pure function of its epoch and its index."""

    kind: str  # a key of Task.batch_specs
    phase: int
    epochs: np.ndarray  # [B] int64: batches may cross epochs
    rows: np.ndarray  # [B] int64, index within the epoch


@dataclasses.dataclass(frozen=True)
class Bucket:
    """Some rows of a source, all of one length, where the source has rows of several lengths."""

    kind: str  # a key of Task.batch_specs
    rows_per_epoch: int
    batches: int  # rows of a step divided by the phase's batch size: shorter rows come in larger batches


class RowSource(abc.ABC):
    """Random access to rows. The only loader state is the step number."""

    @property
    @abc.abstractmethod
    def rows_per_epoch(self) -> int:
        """Return the number of rows of an epoch, which is the same for every epoch."""

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """Return the buckets; none if all rows have one length. Row indices go through the buckets in order: those of
        the first bucket come first. A step has rows of one bucket only."""
        return ()

    def prepare(self, epoch: int) -> None:
        """Begin to plan an epoch in the background. A source that plans nothing does nothing."""
        del epoch

    @abc.abstractmethod
    def rows(self, epochs: np.ndarray, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Return the rows ``indices`` [n] of ``epochs`` [n] as arrays with a leading axis n.

        A row is a pure function of (corpus fingerprint, seed, phase, epoch, index); it does not depend on the other
        rows that are asked for. An array whose name ``is_weight`` counts targets: the evaluation sets it to 0 in the
        rows that fill up its last batch."""


def is_weight(name: str) -> bool:
    """Return whether a feature of a batch is a weight of targets; its name says so, as in ``masked_weights``."""
    return name.endswith("_weights")


class Task(Protocol):
    """An objective or a downstream task."""

    batch_specs: dict[str, BatchSpec]  # kind -> features of a row; each kind is compiled before its first step
    loss_weights: dict[str, float]  # term -> weight in the total loss
    flops_per_row: dict[str, float]  # kind -> FLOPs of one row in a train step, for MFU
    dtype: str  # of the operands of its matrix products, for MFU

    heldout_parts: tuple[str, ...]  # of the held-out rows, each also evaluated by itself; ("",) if there is only one
    gathered_outputs: tuple[str, ...]  # names in ``outputs`` that ``finish`` reads; () if sums are enough

    def source(self, split: Literal["train", "eval"], kind: str, phase: int, part: str | None = None) -> RowSource:
        """Return the rows of a split, or of one of ``heldout_parts``. ``eval`` rows are the same at every
        evaluation."""
        ...

    def init(self, rng: Any) -> Variables:
        """Return fresh variables, every leaf boxed with its logical axes."""
        ...

    def init_carry(self, num_rows: int) -> Any:
        """Return what a recurrent model keeps from step to step; ``()`` if it keeps nothing. The trainer refuses any
        other value: it does not yet carry it through accumulation, meshes, resumes and evaluations."""
        ...

    def counts(self, batch: Batch) -> dict[str, Any]:
        """Return the number of targets of each loss term, from the batch alone."""
        ...

    def loss(self, variables: Variables, batch: Batch, rng: Any, carry: Any) -> Losses:
        """Run the forward pass. The step multiplies each term's value by weight / count over the whole global batch and
        sums over terms and micro-batches. ``rng`` is a ``models.dropout.RowRng`` or None (no dropout)."""
        ...

    def outputs(self, variables: Variables, batch: Batch, carry: Any) -> dict[str, Any]:
        """Return the named arrays [B, ...] that prediction, fill-mask and teachers read."""
        ...

    def summary(self, sums: dict[str, Sum]) -> dict[str, float]:
        """Return the means of the sums, each divided once, and what follows from them, such as a perplexity."""
        ...

    def baselines(self, kind: str, num_rows: int) -> dict[str, float]:
        """Return what models without learning reach on the evaluation's first ``num_rows`` rows (unigram, majority,
        ...)."""
        ...

    def finish(self, part: str, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        """Return the metrics that only the host can compute, from the outputs of all rows of a held-out part.

        Args:
          outputs: ``gathered_outputs`` and ``example_ids``, each [rows of the part, ...], in the order of the part's
            rows.
        """
        ...
