"""Next-token prediction, left to right: "LTR & No NSP" of the ablations (Devlin et al. 2019, section 5.1).

The rows are those of ``mlm_nsp`` before masking, ``[CLS] A [SEP] B [SEP]``; every token after ``[CLS]`` is predicted
from those before it. The model is causal, ``config.model.attention``, here and in fine-tuning.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.errors import UserError
from bert_jax.models.config import ModelConfig
from bert_jax.models.flops import train_flops_per_row
from bert_jax.models.losses import cross_entropy, token_metrics
from bert_jax.models.model import LM_HEAD
from bert_jax.objectives import sentence_pairs
from bert_jax.objectives.sentence_pairs import MASKED, NEXT_SENTENCE, PairObjective, PairsConfig
from bert_jax.records import Batch, BatchSpec
from bert_jax.rows import ngram_models
from bert_jax.rows.masking import MaskingConfig
from bert_jax.rows.rows_config import RowsConfig
from bert_jax.task import Losses, Variables

batch_specs = sentence_pairs.batch_specs

_UNCHANGED = {"mask_share": 0.0, "random_share": 0.0}  # positions are selected, for the same packing, and left as is
_ROWS_AT_ONCE = 4096


@dataclasses.dataclass(frozen=True)
class Config(PairsConfig):
    """Keys of ``config.objective``, beside its name; ``masking`` must be left out."""

    left_out = (*NEXT_SENTENCE, *MASKED)

    def rows(self, max_length: int, masking: Mapping[str, Any], kind: str) -> RowsConfig:
        if masking or self.masking != MaskingConfig():
            where = f"config.phases.{kind}.masking" if masking else "config.objective.masking"
            raise UserError(f"{where} is set, and the objective 'ltr' masks nothing; leave it out")
        return super().rows(max_length, _UNCHANGED, kind)


class Objective(PairObjective):
    """The loss is the mean over all tokens but ``[CLS]`` of the whole global batch."""

    parts = (LM_HEAD,)
    architecture = "BertLMHeadModel"
    headline = "lm_loss"
    loss_weights = {"lm": 1.0}

    @classmethod
    def check_model(cls, model: ModelConfig) -> None:
        if not model.causal:
            raise UserError(
                "config.model.attention is 'bidirectional', which shows the objective 'ltr' what it is to predict;"
                " set it to 'causal'"
            )

    def flops(self, spec: BatchSpec) -> float:
        length = spec["input_ids"].shape[0]
        return train_flops_per_row(self.model_config, length, length - 1, num_pooled=0)

    def inputs(self, batch: Batch) -> Batch:
        """Return ``batch`` with the positions [B, L - 1] at which the next token is predicted: all but the last."""
        rows, length = batch["input_ids"].shape
        positions = jnp.broadcast_to(jnp.arange(length - 1, dtype=jnp.int32)[None, :], (rows, length - 1))
        return {**batch, "masked_positions": positions}

    def counts(self, batch: Batch) -> dict[str, jax.Array]:
        return {"lm": jnp.sum(next_token_weights(batch))}

    def loss(self, variables: Variables, batch: Batch, rng: Any, carry: Any) -> Losses:
        logits = self.apply(variables, batch, rng)["mlm_logits"]  # [B, L - 1, V]
        lm, accuracy = cross_entropy(logits, batch["input_ids"][:, 1:], next_token_weights(batch))
        return Losses({"lm": lm}, {"lm_loss": lm, "lm_accuracy": accuracy, **token_metrics(batch)}, carry)

    def baselines(self, kind: str, num_rows: int) -> dict[str, float]:
        """Cross-entropies in nats a token, of the evaluation's own rows."""
        found = ngram_models.next_tokens_of_rows(self.heldout_rows(kind, num_rows), *self.special_ids[1:])
        tokens = self._training_stream(kind)
        model = ngram_models.TrigramCloze(tokens, self.vocab_size, context=(-1, -2))
        return {
            "unigram_cross_entropy": ngram_models.unigram_cross_entropy(tokens, found.label, self.vocab_size),
            "trigram_cross_entropy": model.cross_entropy(found),
        }

    def _training_stream(self, kind: str) -> np.ndarray:
        """Tokens of an epoch's rows, as many as baselines count."""
        source, length = self.source("train", kind, 0), self.batch_specs[kind]["input_ids"].shape[0]
        indices = np.arange(min(source.rows_per_epoch, max(1, ngram_models.MAX_TOKENS // length)))
        if buckets := source.buckets:  # those of one bucket are asked for at a time
            indices = indices[-buckets[-1].rows_per_epoch :]
        parts = [indices[i : i + _ROWS_AT_ONCE] for i in range(0, len(indices), _ROWS_AT_ONCE)]
        rows = (source.rows(np.zeros_like(part), part) for part in parts)
        return np.concatenate([ngram_models.stream_of_rows(part, self.special_ids[1]) for part in rows])


def next_token_weights(batch: Batch) -> jax.Array:
    """[B, L - 1] float32: 1 where the next token is of the same pair, in a row that counts."""
    sequence = batch.get("sequence_ids", batch["attention_mask"])
    same = (sequence[:, 1:] == sequence[:, :-1]) & (sequence[:, 1:] > 0)
    return same.astype(jnp.float32) * batch["row_weights"][:, None]
