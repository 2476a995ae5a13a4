"""Masked language modelling and next-sentence prediction (Devlin et al. 2019, section 3.1)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

from bert_jax.configuration import LossWeight
from bert_jax.models.model import LM_HEAD, NSP_HEAD, POOLER, EncoderPart, Part
from bert_jax.objectives import base
from bert_jax.objectives.base import MLM, Term, prediction


@dataclasses.dataclass(frozen=True)
class Config(base.Config):
    """The keys of ``config.objective``, besides its name."""

    next_sentence_weight: LossWeight = 1.0  # if 0, the next-sentence loss is measured but does not train the model


class Objective(base.PretrainingObjective):
    """Predicts masked tokens and whether B follows A.

    The loss is the mean over masked positions plus the weighted mean over pairs, each over the whole global batch.
    """

    parts: tuple[Part | EncoderPart, ...] = (POOLER, LM_HEAD, NSP_HEAD)
    titles: ClassVar[Mapping[str, str]] = {
        "nsp_loss": "Next-sentence loss, nats",
        "nsp_accuracy": "Next-sentence accuracy",
    }

    def terms(self, config: Config) -> dict[str, Term]:
        weight = config.next_sentence_weight
        return {"mlm": MLM, "nsp": prediction("nsp_logits", "next_sentence_labels", "next_sentence_weights", weight)}
