"""THE contract. A pretraining objective and a fine-tuning task are the same thing: a ``Task``.

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
    """What a model needs to run. ``frozen`` has no optimizer state and is not part of a checkpoint."""

    params: Any
    frozen: Any


class Losses(NamedTuple):
    """What one (micro-)batch gives, as sums and counts. The metric "tokens" is the numerator of a rate."""

    terms: dict[str, Sum]
    metrics: dict[str, Sum]
    carry: Any


@dataclasses.dataclass(frozen=True)
class Step:
    """Which rows a training step reads: ``epoch`` and ``rows`` [B], each row a pure function of the two."""

    kind: str  # a key of Task.batch_specs
    phase: int
    epochs: np.ndarray  # [B] int64: batches may cross epochs
    rows: np.ndarray  # [B] int64, index within the epoch


@dataclasses.dataclass(frozen=True)
class Bucket:
    """Rows of one length among those of a source, if their lengths differ."""

    kind: str  # a key of Task.batch_specs
    rows_per_epoch: int
    batches: int  # rows of a step, in batches of the phase: shorter rows come in larger batches


class RowSource(abc.ABC):
    """Random access to rows. The only loader state is the step number."""

    @property
    @abc.abstractmethod
    def rows_per_epoch(self) -> int:
        """Rows of an epoch, the same number in every epoch."""

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """Buckets of rows of one length each; empty where all rows have one length. The rows of the first come first in
        the order of indices, and so on; a step has rows of one bucket."""
        return ()

    def prepare(self, epoch: int) -> None:
        """Begin to plan an epoch in the background. A source that plans nothing does nothing."""
        del epoch

    @abc.abstractmethod
    def rows(self, epochs: np.ndarray, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Rows ``indices`` [n] of ``epochs`` [n] as arrays with a leading axis n: a pure function of
        (corpus fingerprint, seed, phase, epoch, index), whatever the other rows asked for. An array whose name
        ``is_weight`` counts targets: the evaluation sets it to 0 in rows that fill up its last batch."""


def is_weight(name: str) -> bool:
    """Return whether a feature of a batch is a weight of targets, by its name: ``row_weights``, ``masked_weights``."""
    return name.endswith("_weights")


class Task(Protocol):
    """An objective or a downstream task."""

    batch_specs: dict[str, BatchSpec]  # kind -> features of a row; each kind is compiled before its first step
    loss_weights: dict[str, float]  # term -> weight in the total loss
    flops_per_row: dict[str, float]  # kind -> FLOPs of one row in a train step, for MFU
    dtype: str  # of the operands of its matrix products, for MFU

    heldout_parts: tuple[str, ...]  # of the held-out rows, evaluated apart too; ("",) where there is one
    gathered_outputs: tuple[str, ...]  # of ``outputs``: what ``finish`` reads; () where sums say everything

    def source(self, split: Literal["train", "eval"], kind: str, phase: int, part: str | None = None) -> RowSource:
        """Rows of a split, or of one of ``heldout_parts``. ``eval`` rows are the same at every evaluation."""
        ...

    def init(self, rng: Any) -> Variables:
        """Fresh variables, every leaf boxed with its logical axes."""
        ...

    def init_carry(self, num_rows: int) -> Any:
        """What a recurrent model keeps from step to step; ``()`` where there is nothing. The trainer refuses others: it
        does not yet carry them through accumulation, meshes, resumes and evaluations."""
        ...

    def counts(self, batch: Batch) -> dict[str, Any]:
        """Number of targets of each loss term, from the batch alone."""
        ...

    def loss(self, variables: Variables, batch: Batch, rng: Any, carry: Any) -> Losses:
        """Forward pass. The step multiplies each term's value by weight / count over the whole global batch and sums
        over terms and micro-batches. ``rng`` is a ``models.dropout.RowRng`` or None (no dropout)."""
        ...

    def outputs(self, variables: Variables, batch: Batch, carry: Any) -> dict[str, Any]:
        """Named arrays [B, ...] that prediction, fill-mask and teachers read."""
        ...

    def summary(self, sums: dict[str, Sum]) -> dict[str, float]:
        """Sums over everything -> means, divided once, and what follows from them (a perplexity)."""
        ...

    def baselines(self, kind: str, num_rows: int) -> dict[str, float]:
        """What models without learning reach on the evaluation's first ``num_rows`` rows (unigram, majority, ...)."""
        ...

    def finish(self, part: str, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        """Metrics that need the host, from the outputs of all rows of a held-out part, in the order of its rows.

        Args:
          outputs: ``gathered_outputs`` and ``example_ids``, each [rows of the part, ...].
        """
        ...
