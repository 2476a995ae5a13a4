"""Masked language modelling and sentence-order prediction (Lan et al. 2020, "ALBERT", section 3.1)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

from bert_jax.configuration import LossWeight
from bert_jax.models.model import LM_HEAD, POOLER, SOP_HEAD
from bert_jax.objectives import base
from bert_jax.objectives.base import MLM, Term, prediction


@dataclasses.dataclass(frozen=True)
class Config(base.Config):
    """The keys of ``config.objective``, besides its name."""

    sentence_order_weight: LossWeight = 1.0  # if 0, the sentence-order loss is measured but does not train the model


class Objective(base.PretrainingObjective):
    """Predicts masked tokens and whether A and B are in the order of the text.

    The loss is the mean over masked positions plus the weighted mean over pairs, each over the whole global batch.
    """

    parts = (POOLER, LM_HEAD, SOP_HEAD)
    arrangement = "sentence_order"
    titles: ClassVar[Mapping[str, str]] = {
        "sop_loss": "Sentence-order loss, nats",
        "sop_accuracy": "Sentence-order accuracy",
    }

    def terms(self, config: Config) -> dict[str, Term]:
        weight = config.sentence_order_weight
        return {"mlm": MLM, "sop": prediction("sop_logits", "sentence_order_labels", "sentence_order_weights", weight)}
