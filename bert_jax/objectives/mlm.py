"""Masked language modelling alone: "No NSP" of the ablations (Devlin et al. 2019, section 5.1), and RoBERTa's.

On sentence pairs true and random second segments are read alike; nobody is asked which is which.
"""

from __future__ import annotations

from bert_jax.models.model import LM_HEAD
from bert_jax.objectives import base
from bert_jax.objectives.base import MLM, Term

Config = base.Config


class Objective(base.PretrainingObjective):
    """The loss is the mean over masked positions of the whole global batch. There is no pooler to train."""

    parts = (LM_HEAD,)

    def terms(self, config: Config) -> dict[str, Term]:
        return {"mlm": MLM}
