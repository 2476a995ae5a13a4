"""ELECTRA (Clark et al. 2020): BERT's layers, on embeddings that may have another width; texts are pooled with a GELU.

The parameters are the same as BERT's (``models.encoders.bert``), with ``embedding_projection`` if the widths differ.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax

from bert_jax.models import heads
from bert_jax.models.encoders import bert
from bert_jax.models.encoders.bert import LmHead as LmHead
from bert_jax.models.encoders.bert import size_of
from bert_jax.models.primitives import ACTIVATIONS


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(bert.Config):
    """The settings of an ELECTRA encoder. Defaults are electra-base."""

    embedding_size: int = 768  # E; if it is not hidden_size, a dense layer projects the embeddings
    activation: Literal["gelu"] = "gelu"  # transformers has no other one in the heads of an ELECTRA

    @property
    def embedding_projection(self) -> int:
        return 0 if self.embedding_size == self.hidden_size else self.embedding_size * self.hidden_size


class Encoder(bert.Encoder):
    """Applies the embeddings, their projection if they are not as wide as the layers, and the layers."""


class Pooler(heads.Pooler):
    """Applies a dense layer and GELU, as the classes of transformers for texts and for choices do.

    The class for texts also drops out what this layer reads; here nothing is dropped there.
    """

    @staticmethod
    def activation(x: jax.Array) -> jax.Array:
        """Return GELU of x."""
        return ACTIVATIONS["gelu"](x)


# google-research/electra, configure_pretraining.py and util/training_utils.py; the discriminators.
SIZES: dict[str, dict[str, int]] = {
    "small": size_of(12, 256, 4, embedding_size=128),
    "base": size_of(12, 768, 12, embedding_size=768),
    "large": size_of(24, 1024, 16, embedding_size=1024),
}
