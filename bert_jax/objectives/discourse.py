"""Discourse relations: which connective stood between two sentences? (ERNIE 2.0; Sun et al. 2020, section 4.2.3)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from bert_jax.objectives import sequence_labels, task_ids


@dataclasses.dataclass(frozen=True)
class Config(task_ids.Config):
    """The keys of ``config.objective``, besides its name."""

    task_id: int = 5  # the row of the encoder's task embeddings, if config.model.task_type_vocab_size is not 0


class Objective(sequence_labels.SequenceLabels):
    """Predicts the class of the connective that began B of a pair, and that rows do not show.

    ``config.objective.masking`` must not be set.
    """

    arrangement = "discourse"
    titles: ClassVar[Mapping[str, str]] = {
        "discourse_loss": "Discourse-relation loss, nats",
        "discourse_accuracy": "Discourse-relation accuracy",
    }

    @property
    def needed_columns(self) -> tuple[str, ...]:
        """The columns of the corpus that rows read, also to find the sentences that begin with a labelled phrase."""
        arrangers: list[Any] = [rows.arranger for rows in self._rows.values()]
        return tuple(dict.fromkeys((*super().needed_columns, *(one.column for one in arrangers))))
