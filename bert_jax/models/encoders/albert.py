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


def _size(num_layers: int, hidden_size: int, num_heads: int, embedding_size: int = 128) -> dict[str, int]:
    return {
        "num_layers": num_layers,
        "hidden_size": hidden_size,
        "num_heads": num_heads,
        "mlp_dim": 4 * hidden_size,
        "embedding_size": embedding_size,
    }


# "base" to "xxlarge" are from table 1, with the numbers of heads of the released models.
SIZES: dict[str, dict[str, int]] = {
    "base": _size(12, 768, 12),
    "large": _size(24, 1024, 16),
    "xlarge": _size(24, 2048, 16),
    "xxlarge": _size(12, 4096, 64),
    "tiny": _size(2, 128, 2, 64),
    "mini": _size(4, 256, 4, 64),
    "small": _size(4, 512, 8),
    "medium": _size(8, 512, 8),
}
