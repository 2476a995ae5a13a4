"""The encoder under the heads of downstream tasks (Devlin et al. 2019, section 4 and figure 4).

Parameters: those of ``BertForPreTraining`` under ``encoder`` and ``pooler``, and one dense layer, ``classifier`` or
``qa_outputs``. Every module takes the ids [B, L] of a batch and returns named arrays, ``logits`` in float32 among them.

``bilstm_layers`` above 0 puts a BiLSTM, randomly initialised and as wide as the encoder, between the two (section 5.1,
"+ BiLSTM"); its parameters lie under ``bilstm``.
"""

from __future__ import annotations

from typing import Any

import jax
from flax import linen as nn

from bert_jax.models.bilstm import BiLstm
from bert_jax.models.config import ModelConfig
from bert_jax.models.dropout import RowRng, dropout
from bert_jax.models.encoder import BertEncoder
from bert_jax.models.heads import Pooler, summary_positions
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
        config, embed, outputs = self.config, (("embed", x.shape[-1]),), ((None, self.num_outputs),)
        return Dense(config, embed, outputs, config.param_dtype, name="dense")(x)  # type: ignore[no-any-return]


class BertForSequenceClassification(nn.Module):
    """A label, or a number (``num_labels`` 1), for a text or a pair of texts."""

    config: ModelConfig
    num_labels: int
    classifier_dropout_rate: float = 0.1
    bilstm_layers: int = 0

    def setup(self) -> None:
        self.encoder = BertEncoder(self.config)
        self.bilstm = on_top(self.config, self.bilstm_layers)
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
        sequence = read(self, input_ids, token_type_ids, attention_mask, rng)
        pooled = self.pooler(sequence, summary_positions(self.config, attention_mask))[:, 0]
        return {"sequence": sequence, "pooled": pooled, "logits": self.classifier(pooled, rng)}


class BertForTokenClassification(nn.Module):
    """A label for every token."""

    config: ModelConfig
    num_labels: int
    classifier_dropout_rate: float = 0.1
    bilstm_layers: int = 0

    def setup(self) -> None:
        self.encoder = BertEncoder(self.config)
        self.bilstm = on_top(self.config, self.bilstm_layers)
        self.classifier = Classifier(self.config, self.num_labels, self.classifier_dropout_rate)

    def __call__(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        attention_mask: jax.Array,
        rng: RowRng | None = None,
    ) -> dict[str, jax.Array]:
        """Ids [B, L] -> sequence [B, L, D], logits [B, L, K]."""
        sequence = read(self, input_ids, token_type_ids, attention_mask, rng)
        return {"sequence": sequence, "logits": self.classifier(sequence, rng)}


class BertForQuestionAnswering(nn.Module):
    """Scores of being the first and the last token of the answer; no dropout on top."""

    config: ModelConfig
    bilstm_layers: int = 0

    def setup(self) -> None:
        self.encoder = BertEncoder(self.config)
        self.bilstm = on_top(self.config, self.bilstm_layers)
        self.qa_outputs = Classifier(self.config, 2, 0.0)

    def __call__(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        attention_mask: jax.Array,
        rng: RowRng | None = None,
    ) -> dict[str, jax.Array]:
        """Ids [B, L] -> sequence [B, L, D], start_logits and end_logits [B, L]."""
        sequence = read(self, input_ids, token_type_ids, attention_mask, rng)
        logits = self.qa_outputs(sequence, rng)
        return {"sequence": sequence, "start_logits": logits[..., 0], "end_logits": logits[..., 1]}


class BertForMultipleChoice(nn.Module):
    """A score for every choice: one shared vector on the pooled output of (context, choice)."""

    config: ModelConfig
    classifier_dropout_rate: float = 0.1
    bilstm_layers: int = 0

    def setup(self) -> None:
        self.encoder = BertEncoder(self.config)
        self.bilstm = on_top(self.config, self.bilstm_layers)
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
        sequence = read(self, ids, types, mask, rng)
        pooled = self.pooler(sequence, summary_positions(self.config, mask))[:, 0]
        return {"logits": self.classifier(pooled, rng).reshape(num_rows, num_choices)}


def on_top(config: ModelConfig, num_layers: int) -> BiLstm | None:
    """A BiLSTM whose output has the width of the encoder's, or None."""
    return BiLstm(config.hidden_size // 2, num_layers) if num_layers else None


def read(
    module: Any, input_ids: jax.Array, token_type_ids: jax.Array, attention_mask: jax.Array, rng: RowRng | None
) -> jax.Array:
    """Ids [B, L] -> [B, L, D]: what stands below the head of ``module``."""
    sequence = module.encoder(input_ids, token_type_ids, attention_mask, rng=rng)
    if module.bilstm is None:
        return sequence  # type: ignore[no-any-return]
    return module.bilstm(sequence, attention_mask).astype(sequence.dtype)  # type: ignore[no-any-return]
