"""Masked language modelling alone: "No NSP" in the ablations (Devlin et al. 2019, section 5.1); also RoBERTa.

If the arrangement makes sentence pairs, the model reads true and random second segments but does not predict which is
which.
"""

from __future__ import annotations

from bert_jax.models.model import LM_HEAD
from bert_jax.objectives import base
from bert_jax.objectives.base import MLM, Term

Config = base.Config


class Objective(base.PretrainingObjective):
    """Predicts masked tokens.

    The loss is the mean over masked positions of the whole global batch. The model has no pooler.
    """

    parts = (LM_HEAD,)

    def terms(self, config: Config) -> dict[str, Term]:
        return {"mlm": MLM}
