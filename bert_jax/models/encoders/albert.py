"""ALBERT (Lan et al. 2020): narrow embeddings, widened once, and one layer that is applied ``num_layers`` times.

Parameters (the embeddings have width E, everything else has width H; the tree is the same if layers are scanned)::

    embeddings/{word_embeddings, position_embeddings, token_type_embeddings, layer_norm/{scale, bias}}
    embedding_projection/{kernel, bias}
    layer/attention/{query, key, value, output}/{kernel, bias}
    layer/mlp/{input, output}/{kernel, bias}
    layer/{attention_layer_norm, mlp_layer_norm}/{scale, bias}
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from bert_jax.models.encoders import bert
from bert_jax.models.encoders.bert import LmHead as LmHead
from bert_jax.models.encoders.bert import Pooler as Pooler
from bert_jax.models.encoders.bert import size_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(bert.Config):
    """The settings of an ALBERT encoder. Defaults are albert-base-v2.

    That model has no dropout (google-research/albert, README, "Version 2").
    """

    dropout_rate: float = 0.0  # as published
    attention_dropout_rate: float = 0.0  # as published
    activation: Literal["gelu", "gelu_tanh", "relu"] = "gelu_tanh"  # as published
    embedding_size: int = 128  # E (section 3.1, "Factorized embedding parameterization")

    @property
    def embedding_projection(self) -> int:
        return self.embedding_size * self.hidden_size

    @property
    def shares_layers(self) -> bool:
        return True


class Encoder(bert.Encoder):
    """Applies embeddings, their projection, and ``num_layers`` times the same layer, each time with other dropout."""


# "base" to "xxlarge" are from table 1, with the numbers of heads of the released models.
SIZES: dict[str, dict[str, int]] = {
    "base": size_of(12, 768, 12, embedding_size=128),
    "large": size_of(24, 1024, 16, embedding_size=128),
    "xlarge": size_of(24, 2048, 16, embedding_size=128),
    "xxlarge": size_of(12, 4096, 64, embedding_size=128),
    "tiny": size_of(2, 128, 2, embedding_size=64),
    "mini": size_of(4, 256, 4, embedding_size=64),
    "small": size_of(4, 512, 8, embedding_size=128),
    "medium": size_of(8, 512, 8, embedding_size=128),
}
