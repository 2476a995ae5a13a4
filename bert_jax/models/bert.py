"""BERT with its pretraining heads (Devlin et al. 2019)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.models.config import ModelConfig
from bert_jax.models.dropout import RowRng
from bert_jax.models.encoder import BertEncoder
from bert_jax.models.heads import MaskedLmHead, NextSentenceHead, Pooler
from bert_jax.models.primitives import constrain


class BertForPreTraining(nn.Module):
    """Encoder, pooler, masked-LM head and next-sentence head.

    Parameters (layers unrolled; scanned ones are stacked under ``encoder/layers``)::

        encoder/embeddings/{word_embeddings, position_embeddings, token_type_embeddings, layer_norm/{scale, bias}}
        encoder/layer_<i>/attention/{query, key, value, output}/{kernel, bias}
        encoder/layer_<i>/mlp/{input, output}/{kernel, bias}
        encoder/layer_<i>/{attention_layer_norm, mlp_layer_norm}/{scale, bias}
        pooler/dense/{kernel, bias}
        mlm_head/{transform/{kernel, bias}, layer_norm/{scale, bias}, output_bias}
        nsp_head/dense/{kernel, bias}
    """

    config: ModelConfig

    def setup(self) -> None:
        self.encoder = BertEncoder(self.config)
        self.pooler = Pooler(self.config)
        self.mlm_head = MaskedLmHead(self.config)
        self.nsp_head = NextSentenceHead(self.config)

    def __call__(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        attention_mask: jax.Array,
        masked_positions: jax.Array,
        cls_positions: jax.Array,
        position_ids: jax.Array | None = None,
        sequence_ids: jax.Array | None = None,
        rng: RowRng | None = None,
    ) -> dict[str, jax.Array]:
        """Ids [B, L], masked_positions [B, P], cls_positions [B, K].

        Returns:
          sequence [B, L, D], pooled [B, K, D], mlm_logits [B, P, V] float32, nsp_logits [B, K, 2] float32.
        """
        sequence = self.encoder(input_ids, token_type_ids, attention_mask, position_ids, sequence_ids, rng)
        pooled = self.pooler(sequence, cls_positions)
        return {
            "sequence": sequence,
            "pooled": pooled,
            "mlm_logits": mlm_logits(self, sequence, masked_positions),
            "nsp_logits": self.nsp_head(pooled),
        }


class BertForMaskedLm(nn.Module):
    """Encoder and language-model head: BERT without the next-sentence task, or, causal, a left-to-right model.

    Parameters: ``encoder`` and ``mlm_head`` of ``BertForPreTraining``, whose whole tree it takes too.
    """

    config: ModelConfig

    def setup(self) -> None:
        self.encoder = BertEncoder(self.config)
        self.mlm_head = MaskedLmHead(self.config)

    def __call__(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        attention_mask: jax.Array,
        masked_positions: jax.Array,
        position_ids: jax.Array | None = None,
        sequence_ids: jax.Array | None = None,
        rng: RowRng | None = None,
    ) -> dict[str, jax.Array]:
        """Ids [B, L], masked_positions [B, P], those to predict -> sequence [B, L, D], mlm_logits [B, P, V] float32."""
        sequence = self.encoder(input_ids, token_type_ids, attention_mask, position_ids, sequence_ids, rng)
        return {"sequence": sequence, "mlm_logits": mlm_logits(self, sequence, masked_positions)}


def mlm_logits(model: Any, sequence: jax.Array, positions: jax.Array) -> jax.Array:
    """sequence [B, L, D] of ``model``, positions [B, P] -> scores of all pieces there, [B, P, V] float32."""
    features, output_bias = model.mlm_head(sequence, positions)
    logits = model.encoder.embeddings.decode(features) + output_bias[None, None, :]
    return constrain(logits, "batch", None, "vocab")


def fresh_params(config: ModelConfig, seed: int = 0) -> dict[str, Any]:
    """Newly initialised parameters, without their logical axis names."""
    ids = jnp.zeros((1, 1), jnp.int32)
    variables = jax.jit(BertForPreTraining(config).init)(jax.random.key(seed), ids, ids, ids, ids, ids)
    return nn.unbox(variables["params"])  # type: ignore[no-any-return]
