"""Sentence reordering: in which order do shuffled pieces of a paragraph stand? (ERNIE 2.0; Sun et al. 2020, 4.2.2)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

from bert_jax.objectives import sequence_labels, task_ids


@dataclasses.dataclass(frozen=True)
class Config(task_ids.Config):
    """The keys of ``config.objective``, besides its name."""

    task_id: int = 3  # the row of the encoder's task embeddings, if config.model.task_type_vocab_size is not 0


class Objective(sequence_labels.SequenceLabels):
    """Predicts the permutation of a paragraph's pieces: 9 classes of up to three pieces, 33 of up to four.

    ``config.objective.masking`` must not be set.
    """

    arrangement = "sentence_reordering"
    titles: ClassVar[Mapping[str, str]] = {
        "sentence_reordering_loss": "Sentence-reordering loss, nats",
        "sentence_reordering_accuracy": "Sentence-reordering accuracy",
    }
