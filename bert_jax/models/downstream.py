"""The encoder under the heads of downstream tasks (Devlin et al. 2019, section 4 and figure 4).

Parameters: those of ``BertForPreTraining`` under ``encoder`` and ``pooler``, and one dense layer, ``classifier`` or
``qa_outputs``. Every module takes the ids [B, L] of a batch and returns named arrays, ``logits`` in float32 among them.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.models.config import ModelConfig
from bert_jax.models.dropout import RowRng, dropout
from bert_jax.models.encoder import BertEncoder
from bert_jax.models.heads import Pooler
from bert_jax.models.primitives import Dense


class Classifier(nn.Module):
    """W in R^{K x D} and a bias on vectors, with dropout on them."""

    config: ModelConfig
    num_outputs: int
    dropout_rate: float

    @nn.compact
    def __call__(self, x: jax.Array, rng: RowRng | None) -> jax.Array:
        """x [B, ..., D] -> [B, ..., K] float32."""
        x = dropout(x, self.dropout_rate, rng, "classifier")
        embed, outputs = (("embed", x.shape[-1]),), ((None, self.num_outputs),)
        return Dense(self.config, embed, outputs, name="dense")(x).astype(self.config.param_dtype)


class BertForSequenceClassification(nn.Module):
    """A label, or a number (``num_labels`` 1), for a text or a pair of texts."""

    config: ModelConfig
    num_labels: int
    classifier_dropout_rate: float = 0.1

    def setup(self) -> None:
        self.encoder = BertEncoder(self.config)
        self.pooler = Pooler(self.config)
        self.classifier = Classifier(self.config, self.num_labels, self.classifier_dropout_rate)

    def __call__(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        attention_mask: jax.Array,
        rng: RowRng | None = None,
    ) -> dict[str, jax.Array]:
        """Ids [B, L] -> sequence [B, L, D], pooled [B, D], logits [B, K]."""
        sequence = self.encoder(input_ids, token_type_ids, attention_mask, rng=rng)
        pooled = self.pooler(sequence, first_positions(input_ids))[:, 0]
        return {"sequence": sequence, "pooled": pooled, "logits": self.classifier(pooled, rng)}


class BertForTokenClassification(nn.Module):
    """A label for every token."""

    config: ModelConfig
    num_labels: int
    classifier_dropout_rate: float = 0.1

    def setup(self) -> None:
        self.encoder = BertEncoder(self.config)
        self.classifier = Classifier(self.config, self.num_labels, self.classifier_dropout_rate)

    def __call__(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        attention_mask: jax.Array,
        rng: RowRng | None = None,
    ) -> dict[str, jax.Array]:
        """Ids [B, L] -> sequence [B, L, D], logits [B, L, K]."""
        sequence = self.encoder(input_ids, token_type_ids, attention_mask, rng=rng)
        return {"sequence": sequence, "logits": self.classifier(sequence, rng)}


class BertForQuestionAnswering(nn.Module):
    """Scores of being the first and the last token of the answer; no dropout on top."""

    config: ModelConfig

    def setup(self) -> None:
        self.encoder = BertEncoder(self.config)
        self.qa_outputs = Classifier(self.config, 2, 0.0)

    def __call__(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        attention_mask: jax.Array,
        rng: RowRng | None = None,
    ) -> dict[str, jax.Array]:
        """Ids [B, L] -> sequence [B, L, D], start_logits and end_logits [B, L]."""
        sequence = self.encoder(input_ids, token_type_ids, attention_mask, rng=rng)
        logits = self.qa_outputs(sequence, rng)
        return {"sequence": sequence, "start_logits": logits[..., 0], "end_logits": logits[..., 1]}


class BertForMultipleChoice(nn.Module):
    """A score for every choice: one shared vector on the pooled output of (context, choice)."""

    config: ModelConfig
    classifier_dropout_rate: float = 0.1

    def setup(self) -> None:
        self.encoder = BertEncoder(self.config)
        self.pooler = Pooler(self.config)
        self.classifier = Classifier(self.config, 1, self.classifier_dropout_rate)

    def __call__(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        attention_mask: jax.Array,
        rng: RowRng | None = None,
    ) -> dict[str, jax.Array]:
        """Ids [B, C, L] -> logits [B, C]."""
        num_rows, num_choices, length = input_ids.shape
        if rng is not None:  # a choice keeps its randomness wherever its row is computed
            rng = rng.repeated(num_choices)
        ids, types, mask = (x.reshape(-1, length) for x in (input_ids, token_type_ids, attention_mask))
        sequence = self.encoder(ids, types, mask, rng=rng)
        pooled = self.pooler(sequence, first_positions(ids))[:, 0]
        return {"logits": self.classifier(pooled, rng).reshape(num_rows, num_choices)}


def first_positions(input_ids: jax.Array) -> jax.Array:
    """[B, 1]: where ``[CLS]`` stands."""
    return jnp.zeros((input_ids.shape[0], 1), jnp.int32)
