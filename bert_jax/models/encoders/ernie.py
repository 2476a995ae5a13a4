"""ERNIE 1.0 (Sun et al. 2019): BERT's computation with ReLU, as in PaddlePaddle's Chinese model.

ERNIE 2.0 and 3.0 compute the same for one task; ``interchange.families.ernie`` says how an import treats task ids.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from bert_jax.models.encoders import bert
from bert_jax.models.encoders.bert import SIZES as SIZES
from bert_jax.models.encoders.bert import LmHead as LmHead
from bert_jax.models.encoders.bert import Pooler as Pooler


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(bert.Config):
    """The settings of an ERNIE encoder. Defaults are the base model."""

    activation: Literal["gelu", "gelu_tanh", "relu"] = "relu"  # as published


class Encoder(bert.Encoder):
    """Applies the embeddings and then ``num_layers`` layers, as BERT does."""
