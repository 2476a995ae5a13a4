"""IR relevance: is a text relevant to a query? (ERNIE 2.0; Sun et al. 2020, section 4.2.3)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

from bert_jax.objectives import discourse, task_ids


@dataclasses.dataclass(frozen=True)
class Config(task_ids.Config):
    """The keys of ``config.objective``, besides its name."""

    task_id: int = 6  # the row of the encoder's task embeddings, if config.model.task_type_vocab_size is not 0


class Objective(discourse.Objective):
    """Predicts whether B is strongly, weakly or not relevant to the query A.

    ``config.objective.masking`` must not be set.
    """

    arrangement = "ir_relevance"
    titles: ClassVar[Mapping[str, str]] = {
        "ir_relevance_loss": "Relevance loss, nats",
        "ir_relevance_accuracy": "Relevance accuracy",
    }
