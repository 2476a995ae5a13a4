"""DistilBERT (Sanh et al. 2019): BERT's layers, half as many, without token types; a text classifier has a ReLU.

The parameters are BERT's (``models.encoders.bert``) without ``embeddings/token_type_embeddings``. Positions are
learned; if a model was made with sines, its positions are parameters with these values.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax

from bert_jax.configuration import check_fields
from bert_jax.models import heads
from bert_jax.models.config import TransformerConfig
from bert_jax.models.encoders import bert
from bert_jax.models.encoders.bert import LmHead as LmHead
from bert_jax.models.transformer import READS

_EPSILON = 1e-12


@dataclasses.dataclass(frozen=True)
class Config(TransformerConfig):
    """The settings of a DistilBERT encoder. Defaults are distilbert-base."""

    num_layers: int = 6  # half of BERT-base's
    _: dataclasses.KW_ONLY
    classifier_dropout_rate: float = 0.2  # dropout before a classifier of texts or of choices
    span_dropout_rate: float = 0.1  # dropout before the scores of an answer's first and last token

    def __post_init__(self) -> None:
        super().__post_init__()
        only = f"leave it out: a DistilBERT has {_EPSILON}, and transformers has no key for another"
        check_fields(self, "config.model", only, "layer_norm_eps", sound=lambda value: value == _EPSILON)


class Encoder(bert.Encoder):
    """Applies the embeddings and then ``num_layers`` layers, as BERT does, without token types."""

    reads: ClassVar[frozenset[str]] = READS | {"position_ids"}


class Pooler(heads.Pooler):
    """Applies a dense layer and ReLU: what transformers calls a ``pre_classifier``."""

    @staticmethod
    def activation(x: jax.Array) -> jax.Array:
        """Return max(x, 0)."""
        return jax.nn.relu(x)


SIZES: dict[str, dict[str, int]] = {
    "base": {**bert.SIZES["base"], "num_layers": 6},
    **{name: bert.SIZES[name] for name in ("tiny", "mini", "small", "medium")},
}
