"""Has the base class of tasks that choose one of the C sequences of a row. One learned vector scores each sequence."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.losses.cross_entropy import cross_entropy, divergence
from bert_jax.models.heads import ChoiceClassifier
from bert_jax.models.masks import NEVER
from bert_jax.models.model import POOLER, Part
from bert_jax.records import Batch, Sum
from bert_jax.rows.example_rows import EncodedRows
from bert_jax.task import Term
from bert_jax.tasks.base import ExampleTask


class ChoiceTask(ExampleTask):
    """A task whose loss is the cross-entropy of the softmax over the choices of a row.

    Its rows have ``choice_weights`` [C], 0 where a row has fewer choices.
    """

    exported_as = ("ForMultipleChoice", None)
    head_dropout = "classifier_dropout_rate"

    def choice_rows(self, choices: Sequence[Sequence[tuple[str, str]]], right: Sequence[int | None]) -> EncodedRows:
        """Return a row for each sequence of choices.

        Args:
          choices: the two texts of each choice of a row.
          right: the index of the right choice of each row; None if it is unknown.
        """
        most = self.num_choices or 1
        # A missing choice gets the shortest sequence, [CLS] [SEP] [SEP].
        filled = [pair for of_row in choices for pair in (*of_row, *[("", "")] * (most - len(of_row)))]
        sequences = self.pair_sequences([text for text, _ in filled], [pair for _, pair in filled])
        weights = np.arange(most) < np.array([len(of_row) for of_row in choices], np.int64)[:, None]
        arrays = {"choice_weights": weights.astype(np.float32), **self.targets(right, "int32")}
        return self.make_rows(sequences, arrays)

    def head(self, dropout_rate: float) -> tuple[Part, ...]:
        return (POOLER, Part.of("classifier", ChoiceClassifier, dropout_rate=dropout_rate))

    def terms(self, config: Any) -> dict[str, Term]:
        measures = {"accuracy": lambda outputs, batch: _choose(outputs, batch)[1]}
        return {"": Term(_ChoiceLoss(), measures=measures)}

    def scores(self, split: str, outputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the scores [N, C] float64 of the choices of N rows, ``NEVER`` where a choice is missing."""
        there = self.rows[split].arrays["choice_weights"] > 0
        return np.where(there, outputs["logits"].astype(np.float64), NEVER)


@dataclasses.dataclass(frozen=True)
class _ChoiceLoss:
    """The cross-entropy over the choices that a row has."""

    scores: ClassVar[tuple[str, ...]] = ("logits",)

    def __call__(self, outputs: Mapping[str, jax.Array], batch: Batch) -> Sum:
        return _choose(outputs, batch)[0]

    def taught(
        self, outputs: Mapping[str, jax.Array], said: Mapping[str, jax.Array], batch: Batch, temperature: float
    ) -> Sum:
        """Return the ``divergence`` from a teacher's distribution over the choices that a row has."""
        logits, others = (jnp.where(batch["choice_weights"] > 0, one["logits"], NEVER) for one in (outputs, said))
        return divergence(logits, others, batch["label_weights"], temperature)


def _choose(outputs: Mapping[str, jax.Array], batch: Batch) -> tuple[Sum, Sum]:
    """Return the cross-entropy and the accuracy of the choices that each row has."""
    logits = jnp.where(batch["choice_weights"] > 0, outputs["logits"], NEVER)  # [B, C]
    return cross_entropy(logits, batch["labels"], batch["label_weights"])
