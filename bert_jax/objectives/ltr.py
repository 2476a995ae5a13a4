"""Next-token prediction, left to right: "LTR & No NSP" in the ablations (Devlin et al. 2019, section 5.1).

The rows are ``[CLS] A [SEP] B [SEP]``, as ``mlm_nsp`` has them before masking, or rows of another arrangement. Every
token after ``[CLS]`` is predicted from the tokens before it, and the model reads from left to right in fine-tuning too.
With the tokenizer of a GPT, the arrangement is ``sentences``, and a row is text and the end token; each token but the
first is predicted. With the arrangement ``streams`` a row goes on where another row ends; every token is predicted, and
a model with memory sees the rows before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.generation.steppers import LEFT_TO_RIGHT
from bert_jax.models.model import LM_HEAD
from bert_jax.objectives import base
from bert_jax.objectives.base import Term, prediction
from bert_jax.records import Batch, BatchSpec
from bert_jax.rows import ngram_models
from bert_jax.rows.masking import MaskingConfig

_ROWS_AT_ONCE = 4096

Config = base.Config


class Objective(base.PretrainingObjective):
    """Predicts every token but ``[CLS]``; the loss is the mean over all these tokens of the global batch.

    ``config.objective.masking`` must not be set.
    """

    parts = (LM_HEAD,)
    reads = "what came before"
    writes = LEFT_TO_RIGHT
    derived = ("masked_positions", "next_token_labels", "next_token_weights")
    titles: ClassVar[Mapping[str, str]] = {"lm_loss": "Next-token loss, nats", "lm_accuracy": "Next-token accuracy"}

    def terms(self, config: Config) -> dict[str, Term]:
        return {"lm": prediction("mlm_logits", "next_token_labels", "next_token_weights", baseline="none")}

    def inputs(self, batch: Batch) -> Batch:
        """Return ``batch`` with the positions [B, L - 1] at which the next token is predicted (all but the last) added.

        The labels and weights of the next tokens are added too. If the rows go on in other rows (``next_ids`` [B]), the
        token at the last position is predicted too, and the shapes are [B, L].
        """
        ids, following = batch["input_ids"], batch.get("next_ids")
        labels, weights = ids[:, 1:], next_token_weights(batch)
        if following is not None:
            labels = jnp.concatenate([labels, following[:, None]], axis=1)
            weights = jnp.concatenate([weights, batch["row_weights"][:, None]], axis=1)
        positions = jnp.broadcast_to(jnp.arange(labels.shape[1], dtype=jnp.int32)[None, :], labels.shape)
        next_tokens = {"next_token_labels": labels, "next_token_weights": weights}
        return {**batch, "masked_positions": positions, **next_tokens}

    def masking(self, config: MaskingConfig, where: str) -> MaskingConfig:
        return config.changing_nothing(where, self.name)

    def flops(self, spec: BatchSpec) -> float:
        length = spec["input_ids"].shape[0]
        return self.setting.model.train_flops(length, length if "next_ids" in spec else length - 1)

    def baselines(self, kind: str, num_rows: int, part: str | None = None) -> dict[str, float]:
        """Return baselines on the rows of the evaluation: cross-entropies of n-gram models, in nats per token."""
        predicted = ngram_models.next_tokens_of_rows(self.heldout_rows(kind, num_rows, part), *self.special_ids[1:])
        tokens = self._training_stream(kind, part)
        return ngram_models.cross_entropies(predicted, tokens, self.vocab_size, "trigram", context=(-1, -2))

    def _training_stream(self, kind: str, part: str | None) -> np.ndarray:
        """Return tokens [n] of the training rows of an epoch, at most ``ngram_models.MAX_TOKENS``."""
        source, length = self.source("train", kind, 0, part), self.batch_specs[kind]["input_ids"].shape[0]
        indices = np.arange(min(source.rows_per_epoch, max(1, ngram_models.MAX_TOKENS // length)))
        if buckets := source.buckets:  # rows are requested from one bucket at a time
            indices = indices[-buckets[-1].rows_per_epoch :]
        parts = [indices[i : i + _ROWS_AT_ONCE] for i in range(0, len(indices), _ROWS_AT_ONCE)]
        rows = (source.rows(np.zeros_like(part), part) for part in parts)
        return np.concatenate([ngram_models.stream_of_rows(part, self.special_ids[1]) for part in rows])


def next_token_weights(batch: Batch) -> jax.Array:
    """Return weights [B, L - 1] float32: 1 where the next token is in the same sequence and the row counts, else 0."""
    sequence = batch.get("sequence_ids", batch["attention_mask"])
    same = (sequence[:, 1:] == sequence[:, :-1]) & (sequence[:, 1:] > 0)
    return same.astype(jnp.float32) * batch["row_weights"][:, None]
