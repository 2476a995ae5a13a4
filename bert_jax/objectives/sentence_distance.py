"""Sentence distance: neighbours, one document or two documents (ERNIE 2.0; Sun et al. 2020, section 4.2.2)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

from bert_jax.objectives import sequence_labels, task_ids


@dataclasses.dataclass(frozen=True)
class Config(task_ids.Config):
    """The keys of ``config.objective``, besides its name."""

    task_id: int = 4  # the row of the encoder's task embeddings, if config.model.task_type_vocab_size is not 0


class Objective(sequence_labels.SequenceLabels):
    """Predicts how far A and B of a pair are from each other in the text.

    ``config.objective.masking`` must not be set.
    """

    arrangement = "sentence_distance"
    titles: ClassVar[Mapping[str, str]] = {
        "sentence_distance_loss": "Sentence-distance loss, nats",
        "sentence_distance_accuracy": "Sentence-distance accuracy",
    }
