"""One vector for a text: the encoder and a pooling (Reimers and Gurevych 2019, section 3).

Parameters: those of ``BertForPreTraining`` under ``encoder``, and no others.
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.models.config import ModelConfig
from bert_jax.models.dropout import RowRng
from bert_jax.models.encoder import BertEncoder

Pooling = Literal["mean", "cls"]


class BertForSentenceEmbedding(nn.Module):
    """``pooling`` "mean": of the last layer over all real positions, ``[CLS]`` and ``[SEP]`` too; "cls": the last layer
    at ``[CLS]``, without the pooler."""

    config: ModelConfig
    pooling: Pooling = "mean"

    def setup(self) -> None:
        self.encoder = BertEncoder(self.config)

    def __call__(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        attention_mask: jax.Array,
        rng: RowRng | None = None,
    ) -> dict[str, jax.Array]:
        """Ids [B, L] or [B, C, L] -> embeddings [B, D] or [B, C, D], float32 or wider, of any length."""
        *rows, length = input_ids.shape
        if rng is not None and len(rows) == 2:  # a text keeps its randomness wherever its row is computed
            rng = rng.repeated(rows[1])
        ids, types, mask = (x.reshape(-1, length) for x in (input_ids, token_type_ids, attention_mask))
        sequence = self.encoder(ids, types, mask, rng=rng)
        return {"embeddings": pooled(sequence, mask, self.pooling).reshape(*rows, -1)}


def pooled(sequence: jax.Array, attention_mask: jax.Array, pooling: Pooling) -> jax.Array:
    """sequence [B, L, D], attention_mask [B, L] -> [B, D], float32 or wider."""
    sequence = sequence.astype(jnp.promote_types(sequence.dtype, jnp.float32))
    if pooling == "cls":
        return sequence[:, 0]
    weights = attention_mask.astype(sequence.dtype)
    return jnp.einsum("bld,bl->bd", sequence, weights) / jnp.maximum(jnp.sum(weights, axis=1), 1.0)[:, None]
