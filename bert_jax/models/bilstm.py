"""A bidirectional LSTM over token vectors: the tagger on frozen features, and the "+ BiLSTM" ablation.

Devlin et al. 2019, sections 5.1 and 5.3: two randomly initialised layers on the encoder's vectors.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.models.dropout import RowRng
from bert_jax.models.heads import Head, Outputs
from bert_jax.models.lstm import Lstm
from bert_jax.records import Batch


class BiLstm(Head):
    """Replaces the output ``sequence`` by the output of stacked layers, each with a forward and a backward LSTM.

    It is the LSTM of Hochreiter and Schmidhuber 1997, with forget gates. Each layer and direction has the parameters of
    ``torch.nn.LSTM``, transposed and with the two biases added up. The gates are in the order input, forget, cell,
    output::

        layer_<i>/{forward, backward}/{kernel [D or 2F, 4F], recurrent_kernel [F, 4F], bias [4F]}

    Attributes:
      features: F, the width of one direction. If None, half of the encoder's width.
      steps: the name of a feature [B, L] of the batch. The LSTM skips the positions where this feature is 0.
    """

    features: int | None = None
    num_layers: int = 1
    steps: str = "attention_mask"

    @nn.compact
    def __call__(self, outputs: Outputs, batch: Batch, rng: RowRng | None) -> dict[str, jax.Array]:
        """Return sequence [B, L, 2F]: the forward vector, then the backward vector; 0 at positions that are skipped.

        The backward direction starts at the last position that is not skipped.
        """
        x, mask = outputs["sequence"], batch[self.steps]
        for i in range(self.num_layers):
            x = BiLstmLayer(self.features or self.config.hidden_size // 2, name=f"layer_{i}")(x, mask)
        return {"sequence": x}


class BiLstmLayer(nn.Module):
    """One layer: a forward and a backward LSTM."""

    features: int

    @nn.compact
    def __call__(self, x: jax.Array, attention_mask: jax.Array, sequence_ids: jax.Array | None = None) -> jax.Array:
        """Return the hidden states [B, L, 2F] of both directions for x [B, L, D] and attention_mask [B, L] (1 real).

        With ``sequence_ids`` [B, L] each sequence of a packed row is read by itself.
        """
        begins = ends = None
        if sequence_ids is not None:
            changes = sequence_ids[:, 1:] != sequence_ids[:, :-1]
            begins, ends = (jnp.pad(changes, ((0, 0), sides)) for sides in ((1, 0), (0, 1)))
        forward, _ = Lstm(self.features, reverse=False, name="forward").run(x, attention_mask, begins=begins)
        backward, _ = Lstm(self.features, reverse=True, name="backward").run(x, attention_mask, begins=ends)
        return jnp.concatenate([forward, backward], axis=-1)
