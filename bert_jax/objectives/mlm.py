"""Masked language modelling alone: "No NSP" of the ablations (Devlin et al. 2019, section 5.1), and RoBERTa's.

With sentence pairs, the model reads true and random second segments and does not predict which they are.
"""

from __future__ import annotations

from bert_jax.models.model import LM_HEAD
from bert_jax.objectives import base
from bert_jax.objectives.base import MLM, Term

Config = base.Config


class Objective(base.PretrainingObjective):
    """The loss is the mean over masked positions of the whole global batch. The model has no pooler."""

    parts = (LM_HEAD,)

    def terms(self, config: Config) -> dict[str, Term]:
        return {"mlm": MLM}
