"""Masked tokens, each predicted at the position before it, as a language model predicts (GPT-BERT, arXiv 2410.24159).

The token at position i is masked, and the vector of position i - 1 predicts it. So a model that learns the next tokens
in other batches (``ltr``) answers both questions at one place with one head (Charpentier and Samuel 2024).
``configs/pretrain/gpt_bert.py`` has both as members of a phase.
"""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp

from bert_jax.models.model import LM_HEAD
from bert_jax.objectives import base
from bert_jax.objectives.base import MLM, Term
from bert_jax.records import Batch

Config = base.Config


class Objective(base.PretrainingObjective):
    """Predicts masked tokens from both sides, at the positions before them.

    The loss is the mean over masked positions of the whole global batch.
    """

    arrangement: ClassVar[str] = "sentences"
    parts = (LM_HEAD,)
    derived = ("masked_positions", "masked_weights")
    differs: ClassVar[str] = "predicts a masked token at the position before it"

    def terms(self, config: Config) -> dict[str, Term]:
        return {"mlm": MLM}

    def inputs(self, batch: Batch) -> Batch:
        """Return ``batch`` with the positions [B, P] before the masked positions.

        The first token of a sequence has no position before it, and the weight 0.
        """
        places, weights = batch["masked_positions"], batch["masked_weights"]
        within = batch.get("position_ids")
        first = places == 0 if within is None else jnp.take_along_axis(within, places, axis=1) == 0
        shifted = {"masked_positions": jnp.maximum(places - 1, 0), "masked_weights": jnp.where(first, 0.0, weights)}
        return {**batch, **shifted}
