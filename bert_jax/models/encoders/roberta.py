"""RoBERTa (Liu et al. 2019): BERT's computation without segments.

As in Hugging Face transformers, the table of token types has one row, which is added to every token.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

import jax.numpy as jnp

from bert_jax.models.dropout import RowRng
from bert_jax.models.encoders import bert
from bert_jax.models.encoders.bert import LmHead as LmHead
from bert_jax.models.encoders.bert import Pooler as Pooler
from bert_jax.models.encoding import Encoding
from bert_jax.models.transformer import READS
from bert_jax.records import Batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(bert.Config):
    """The settings of a RoBERTa encoder. Defaults are roberta-base."""

    type_vocab_size: int = 1  # no segments
    layer_norm_eps: float = 1e-5  # as published
    activation: Literal["gelu"] = "gelu"  # transformers has no other one in the MLM head of a RoBERTa


SIZES = {name: bert.SIZES[name] for name in ("base", "large", "tiny", "mini", "small", "medium")}


class Encoder(bert.Encoder):
    """Applies the embeddings and then ``num_layers`` layers, as BERT does, with token type 0 everywhere."""

    reads: ClassVar[frozenset[str]] = READS | {"position_ids"}

    def __call__(
        self, batch: Batch, rng: RowRng | None = None, hidden_states: Literal["last", "all"] = "last"
    ) -> Encoding:
        """Encode ``input_ids``, ``attention_mask`` and the features in ``reads``, each [B, L].

        If ``rng`` is None, there is no dropout.
        """
        return super().__call__({**batch, "token_type_ids": jnp.zeros_like(batch["input_ids"])}, rng, hidden_states)
