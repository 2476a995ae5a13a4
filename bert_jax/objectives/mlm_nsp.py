"""Masked language modelling and next-sentence prediction (Devlin et al. 2019, section 3.1)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.configuration import check_fields
from bert_jax.corpora.mixture import Mixture
from bert_jax.corpora.store import Corpus
from bert_jax.models.config import ModelConfig
from bert_jax.models.losses import cross_entropy, token_metrics
from bert_jax.models.model import LM_HEAD, NSP_HEAD, POOLER
from bert_jax.objectives import sentence_pairs
from bert_jax.objectives.sentence_pairs import NO_CHANGES, Masking, PairObjective, PairsConfig
from bert_jax.records import Batch
from bert_jax.task import Losses, Variables
from bert_jax.text.tokenizer import Tokenizer

batch_specs = sentence_pairs.batch_specs


@dataclasses.dataclass(frozen=True)
class Config(PairsConfig):
    """Keys of ``config.objective``, beside its name."""

    next_sentence_weight: float = 1.0  # 0: it is measured, and nothing is learned from it

    def __post_init__(self) -> None:
        allowed = "at least 0 is needed"
        check_fields(self, "config.objective", allowed, "next_sentence_weight", sound=lambda value: value >= 0)


class Objective(PairObjective):
    """The loss is the mean over masked positions plus the mean over pairs, each over the whole global batch."""

    parts = (POOLER, LM_HEAD, NSP_HEAD)
    architecture = "BertForPreTraining"
    headline = "mlm_loss"

    def __init__(
        self,
        config: Config,
        corpus: Corpus | Mixture | None,
        tokenizer: Tokenizer | None,
        model: ModelConfig,
        max_lengths: Mapping[str, int],
        seed: int,
        masking: Masking = NO_CHANGES,
        heldout_seed: int | None = None,
    ):
        super().__init__(config, corpus, tokenizer, model, max_lengths, seed, masking, heldout_seed)
        self.loss_weights = {"mlm": 1.0, "nsp": config.next_sentence_weight}

    def counts(self, batch: Batch) -> dict[str, jax.Array]:
        return {"mlm": jnp.sum(batch["masked_weights"]), "nsp": jnp.sum(batch["next_sentence_weights"])}

    def loss(self, variables: Variables, batch: Batch, rng: Any, carry: Any) -> Losses:
        logits = self.apply(variables, batch, rng)
        mlm, mlm_accuracy = cross_entropy(logits["mlm_logits"], batch["masked_labels"], batch["masked_weights"])
        nsp, nsp_accuracy = cross_entropy(
            logits["nsp_logits"], batch["next_sentence_labels"], batch["next_sentence_weights"]
        )
        metrics = {
            "mlm_loss": mlm,
            "mlm_accuracy": mlm_accuracy,
            "nsp_loss": nsp,
            "nsp_accuracy": nsp_accuracy,
            **token_metrics(batch),
        }
        return Losses({"mlm": mlm, "nsp": nsp}, metrics, carry)

    def baselines(self, kind: str, num_rows: int) -> dict[str, float]:
        """Cross-entropies in nats a masked token, and the NSP accuracy of always giving the commoner label, all on the
        evaluation's own rows."""
        rows = self.heldout_rows(kind, num_rows)
        weights = rows["next_sentence_weights"]
        random_rate = float((rows["next_sentence_labels"] * weights).sum() / weights.sum())
        return self.cloze_baselines(rows) | {"nsp_majority_rate": max(random_rate, 1 - random_rate)}
