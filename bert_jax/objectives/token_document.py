"""Token-document relation: does a token also occur elsewhere in its document? (ERNIE 2.0; Sun et al. 2020, 4.2.1)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

from bert_jax.models.heads import Classifier
from bert_jax.models.model import Part
from bert_jax.objectives import task_ids
from bert_jax.objectives.base import Term, prediction


@dataclasses.dataclass(frozen=True)
class Config(task_ids.Config):
    """The keys of ``config.objective``, besides its name."""

    task_id: int = 2  # the row of the encoder's task embeddings, if config.model.task_type_vocab_size is not 0


class Objective(task_ids.WithTaskId):
    """Predicts of each token whether it occurs in the document outside of its segment.

    The loss is the mean over the tokens of text of the global batch. ``config.objective.masking`` must not be set.
    """

    arrangement = "token_document"
    parts = (Part.of("token_document_head", Classifier, num_outputs=2, vectors="sequence", logits="occurs_logits"),)
    titles: ClassVar[Mapping[str, str]] = {
        "token_document_loss": "Token-document loss, nats",
        "token_document_accuracy": "Token-document accuracy",
    }

    def terms(self, config: task_ids.Config) -> dict[str, Term]:
        term = prediction("occurs_logits", "token_document_labels", "token_document_weights")
        return {"token_document": term}
