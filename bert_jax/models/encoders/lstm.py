"""A bidirectional LSTM: BERT with recurrent layers in the place of attention, to compare the two.

A layer has a forward and a backward LSTM, each half as wide as the layer, and joins their vectors; the next layer reads
the joined vectors. So each vector of the second layer has read both sides, and the token at its own place by way of its
neighbours. Masks hide a token from such a stack, as they do from BERT; a language model keeps its two directions apart
(Peters et al. 2018, "ELMo", section 3.1). Layers are those of ``torch.nn.LSTM`` with ``bidirectional=True``, with one
bias in place of two that are added up. A layer norm follows the last layer, since heads expect vectors as BERT has
them: an entry of an LSTM's vector is a product of two numbers below 1, and after four layers its RMS was 0.07.
Parameters::

    embeddings/{word_embeddings, layer_norm/{scale, bias}}
    layer_<i>/{forward, backward}/{kernel [D, 2D], recurrent_kernel [D/2, 2D], bias [2D]}
    layer_norm/{scale, bias}

There are no positions, since an LSTM reads in order, and no token types, since separators end the segments.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

import jax.numpy as jnp
from flax import linen as nn

from bert_jax.configuration import check_fields
from bert_jax.models.bilstm import BiLstmLayer
from bert_jax.models.config import ModelConfig
from bert_jax.models.dropout import RowRng, dropout
from bert_jax.models.encoders.modernbert import Embeddings
from bert_jax.models.encoding import Encoding
from bert_jax.models.heads import LmHead as LmHead
from bert_jax.models.heads import Pooler as Pooler
from bert_jax.models.placement import constrain
from bert_jax.models.primitives import LayerNorm
from bert_jax.records import Batch


@dataclasses.dataclass(frozen=True)
class Config(ModelConfig):
    """The settings of a bidirectional LSTM. A layer has half as many weights as a layer of BERT of its width."""

    num_layers: int = 2  # layers of the encoder, of two directions each

    def __post_init__(self) -> None:
        super().__post_init__()
        even = "an even number is needed: half of a vector is of the forward direction, half of the backward one"
        check_fields(self, "config.model", even, "hidden_size", sound=lambda n: n % 2 == 0)

    @property
    def num_parameters(self) -> int:
        return super().num_parameters + self.num_layers * self._weights

    def products(self, length: int) -> int:
        return length * self.num_layers * self._weights

    @property
    def _weights(self) -> int:
        """Return the number of entries of a layer's kernels: [D, 2D] and [D/2, 2D] of each of two directions."""
        return 6 * self.hidden_size**2


class Encoder(nn.Module):
    """Applies the embeddings, ``num_layers`` layers and a last layer norm; each sequence of a packed row alone."""

    config: Config
    # ``position_ids``, which packed rows have, are of no use here.
    reads: ClassVar[frozenset[str]] = frozenset({"sequence_ids", "position_ids"})

    @nn.compact
    def __call__(
        self, batch: Batch, rng: RowRng | None = None, hidden_states: Literal["last", "all"] = "last"
    ) -> Encoding:
        """Encode ``input_ids`` and ``attention_mask`` [B, L], and ``sequence_ids`` [B, L] of packed rows.

        If ``rng`` is None, there is no dropout; otherwise, as in torch, there is none after the last layer. The last of
        "all" hidden states is normalised.
        """
        config, embeddings = self.config, Embeddings(self.config, name="embeddings")
        x = embeddings(batch, rng)
        kept = [x]
        for i in range(config.num_layers):
            layer = BiLstmLayer(config.hidden_size // 2, name=f"layer_{i}")
            x = dropout(x, config.dropout_rate if i else 0.0, rng, f"layer_{i}")
            x = constrain(layer(x, batch["attention_mask"], batch.get("sequence_ids")), "batch", "length", "embed")
            kept.append(x)
        x = kept[-1] = LayerNorm(config, name="layer_norm")(x)
        return Encoding(x, embeddings.word_embeddings, jnp.stack(kept) if hidden_states == "all" else None)


# As many weights in layers as BERT's size of this name.
SIZES: dict[str, dict[str, int]] = {"tiny": {"num_layers": 4, "hidden_size": 128}}
