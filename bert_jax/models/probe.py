"""A tagger on the layers of an encoder that is not trained (Devlin et al. 2019, section 5.3, table 7)."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.models.bilstm import BiLstm
from bert_jax.models.config import ModelConfig
from bert_jax.models.downstream import Classifier
from bert_jax.models.dropout import RowRng, dropout
from bert_jax.models.encoder import BertEncoder
from bert_jax.models.primitives import named

Layers = Literal[
    "embeddings", "second_to_last", "last", "weighted_sum_last_four", "concat_last_four", "weighted_sum_all"
]
NEEDED = {"weighted_sum_last_four": 4, "concat_last_four": 4}  # layers that the model must have; else 1


class LayerMix(nn.Module):
    """scale * sum of softmax(weights)_i h_i, both learned (Peters et al. 2018, equation 1)."""

    num_layers: int

    @nn.compact
    def __call__(self, hidden: jax.Array) -> jax.Array:
        """The last ``num_layers`` of hidden [N + 1, B, L, D] -> [B, L, D]. At first their mean."""
        weights = self.param("weights", named(nn.initializers.zeros, None), (self.num_layers,), hidden.dtype)
        scale = self.param("scale", nn.initializers.ones, (), hidden.dtype)
        return scale * jnp.tensordot(jax.nn.softmax(weights), hidden[-self.num_layers :], axes=1)


class FeatureTagger(nn.Module):
    """Frozen encoder, one combination of its layers, a BiLSTM over the words, a linear layer.

    Parameters: ``encoder`` as of ``BertForPreTraining``; ``layer_mix/{weights, scale}`` of weighted sums; ``bilstm``;
    ``classifier/dense/{kernel, bias}``.
    """

    config: ModelConfig
    num_labels: int
    layers: Layers = "concat_last_four"
    lstm_size: int = 768  # of one direction
    num_lstm_layers: int = 2
    dropout_rate: float = 0.1  # on what the BiLSTM reads and gives

    def setup(self) -> None:
        self.encoder = BertEncoder(self.config)
        mixed = {"weighted_sum_last_four": 4, "weighted_sum_all": self.config.num_layers}
        if self.layers in mixed:
            self.layer_mix = LayerMix(mixed[self.layers])
        self.bilstm = BiLstm(self.lstm_size, self.num_lstm_layers)
        self.classifier = Classifier(self.config, self.num_labels, self.dropout_rate)

    def __call__(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        attention_mask: jax.Array,
        word_ids: jax.Array,
        rng: RowRng | None = None,
    ) -> dict[str, jax.Array]:
        """Ids [B, L]; word_ids [B, L] is above 0 at the first piece of each word, and the BiLSTM steps from one of
        these to the next. The encoder reads without dropout: its vectors are data.

        Returns:
          logits [B, L, K], of use at the first pieces.
        """
        hidden = self.encoder(input_ids, token_type_ids, attention_mask, hidden_states="all")
        hidden = jax.lax.stop_gradient(hidden).astype(self.config.param_dtype)
        x = dropout(self._combined(hidden), self.dropout_rate, rng, "features")
        x = self.bilstm(x, (word_ids > 0).astype(jnp.int32))
        return {"logits": self.classifier(x, rng)}

    def _combined(self, hidden: jax.Array) -> jax.Array:
        """hidden [N + 1, B, L, D] -> [B, L, D], or [B, L, 4D] with the lowest layer first."""
        if self.layers == "concat_last_four":
            return jnp.concatenate(list(hidden[-4:]), axis=-1)
        place = {"embeddings": 0, "second_to_last": -2, "last": -1}
        return hidden[place[self.layers]] if self.layers in place else self.layer_mix(hidden)
