"""Masked language modelling alone: "No NSP" of the ablations (Devlin et al. 2019, section 5.1).

The rows are those of ``mlm_nsp``, true and random second segments alike; nobody is asked which is which.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.models.losses import cross_entropy, token_metrics
from bert_jax.models.model import LM_HEAD
from bert_jax.objectives import sentence_pairs
from bert_jax.objectives.sentence_pairs import (
    NEXT_SENTENCE,
    PairObjective,
    PairsConfig,
)
from bert_jax.records import Batch
from bert_jax.task import Losses, Variables

batch_specs = sentence_pairs.batch_specs


@dataclasses.dataclass(frozen=True)
class Config(PairsConfig):
    """Keys of ``config.objective``, beside its name."""

    left_out = NEXT_SENTENCE


class Objective(PairObjective):
    """The loss is the mean over masked positions of the whole global batch. There is no pooler to train."""

    parts = (LM_HEAD,)
    architecture = "BertForMaskedLM"
    headline = "mlm_loss"
    loss_weights = {"mlm": 1.0}

    def counts(self, batch: Batch) -> dict[str, jax.Array]:
        return {"mlm": jnp.sum(batch["masked_weights"])}

    def loss(self, variables: Variables, batch: Batch, rng: Any, carry: Any) -> Losses:
        logits = self.apply(variables, batch, rng)["mlm_logits"]
        mlm, accuracy = cross_entropy(logits, batch["masked_labels"], batch["masked_weights"])
        return Losses({"mlm": mlm}, {"mlm_loss": mlm, "mlm_accuracy": accuracy, **token_metrics(batch)}, carry)

    def baselines(self, kind: str, num_rows: int) -> dict[str, float]:
        """Cross-entropies in nats a masked token, on the evaluation's own rows."""
        return self.cloze_baselines(self.heldout_rows(kind, num_rows))
