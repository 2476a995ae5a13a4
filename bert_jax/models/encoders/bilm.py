"""ELMo (Peters et al. 2018, section 3): two language models, one for each direction, of LSTM layers with projections.

The form is allenai/bilm-tf, bilm/training.py, with word inputs: a table of embeddings as wide as a direction, for each
direction layers of LSTMs with a projection, and a residual connection around each layer but the first. The directions
share the embeddings and the softmax, and no layer: a vector is the vector of the forward direction, which has read the
token and what comes before, beside the vector of the backward direction, which has read the token and what comes after.

bilm-tf can make the embeddings of whole words from their characters, by convolutions and highway layers. They are not
built: here tokens are word pieces, which spell every word already, and an encoder does not know how a piece is spelt.

Parameters::

    embeddings/word_embeddings [V, P]
    {forward, backward}/layer_<i>/{kernel [P, 4F], recurrent_kernel [P, 4F], bias [4F], projection [F, P]}

**Memory**. A batch may have ``past_hidden`` [B, N, P] and ``past_cells`` [B, N, F], the state of each forward layer
before the row; the encoder then returns both as they are after the row. No gradient flows into them. The backward
direction begins anew at the end of each row. In bilm-tf both directions carry a state, over sentences in random order
that do not belong together; the reversed batches have an order of their own.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.configuration import check_fields
from bert_jax.models import heads
from bert_jax.models.config import ModelConfig, Reads
from bert_jax.models.dropout import RowRng, dropout
from bert_jax.models.encoding import Encoding
from bert_jax.models.gradients import gather, look_up
from bert_jax.models.lstm import Lstm, State
from bert_jax.models.placement import constrain
from bert_jax.models.primitives import activation_dtype, normal, with_axes
from bert_jax.records import Batch, Feature

_FORGET_BIAS = 1.0  # of TensorFlow's LSTMCell


@dataclasses.dataclass(frozen=True)
class Config(ModelConfig):
    """The settings of a bidirectional language model. Defaults are the published model.

    Attributes:
      clip: the largest absolute value in cells and in projected vectors; None: any value.
      memory_length: 1: the state of the forward direction goes on from row to row, in the arrangement "streams"; 0: it
        begins anew in each row.
    """

    hidden_size: int = 1024  # width of the vectors of tokens; each direction has half of it
    num_layers: int = 2  # layers of each direction
    cell_size: int = 4096  # width of the cells of a layer, which are projected to half of hidden_size
    _: dataclasses.KW_ONLY
    clip: float | None = 3.0
    memory_length: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        where = "config.model"
        even = "an even number is needed: half of it is the width of a direction"
        check_fields(self, where, even, "hidden_size", sound=lambda n: n % 2 == 0)
        check_fields(self, where, "1 to 1,048,576 are allowed", "cell_size", sound=lambda n: 1 <= n <= 2**20)
        check_fields(self, where, "more than 0, or None, is needed", "clip", sound=lambda x: x is None or x > 0)
        only = "0 and 1 are allowed: a state is one vector of each layer"
        check_fields(self, where, only, "memory_length", sound=(0, 1).__contains__)

    @property
    def reads(self) -> Reads:
        return "both ways, apart"

    @property
    def embedding_size(self) -> int:
        """P, the width of the embeddings and of the vectors of a direction."""
        return self.hidden_size // 2

    @property
    def num_parameters(self) -> int:
        return super().num_parameters + 2 * self.num_layers * self._weights

    def products(self, length: int) -> int:
        return length * 2 * self.num_layers * self._weights

    def train_flops(self, length: int, num_masked: int = 0, num_pooled: int = 0) -> float:
        """Return the FLOPs as the base class does, for heads that have no dense layers."""
        predicted = num_masked * self.vocab_size * self.embedding_size
        return 6.0 * (self.products(length) + predicted + 2 * num_pooled * self.hidden_size)

    @property
    def _weights(self) -> int:
        """The entries of the kernels of an LSTM: four gates read the input and the vector before; a projection."""
        return 9 * self.embedding_size * self.cell_size


class _Embeddings(nn.Module):
    """The embeddings of words. Dropout comes with each layer."""

    config: Config

    def setup(self) -> None:
        config = self.config
        table, shape = with_axes(normal(config), "vocab", "embed"), (config.vocab_size, config.embedding_size)
        self.word_embeddings = self.param("word_embeddings", table, shape, config.param_dtype)

    def __call__(self, batch: Batch) -> jax.Array:
        """Return embeddings [B, L, P] for ``input_ids`` [B, L]."""
        x = look_up(self.word_embeddings, batch["input_ids"], activation_dtype(self.config))
        return constrain(x, "batch", "length", "embed")


class _Direction(nn.Module):
    """The layers of one direction."""

    config: Config
    reverse: bool

    @nn.compact
    def __call__(self, x: jax.Array, batch: Batch, rng: RowRng | None) -> tuple[list[jax.Array], list[State]]:
        """Return the vectors [B, L, P] of each layer for embeddings x [B, L, P], and the states after the row."""
        config, begins = self.config, _begins(batch, self.reverse)
        layers, states = list[jax.Array](), list[State]()
        for i in range(config.num_layers):
            read = dropout(x, config.dropout_rate, rng, f"layer_{i}")
            lstm = Lstm(
                config.cell_size, self.reverse, config.embedding_size, config.clip, _FORGET_BIAS, name=f"layer_{i}"
            )
            initial = None
            if "past_cells" in batch and not self.reverse:
                initial = State(batch["past_hidden"][:, i], batch["past_cells"][:, i])
            x, state = lstm.run(read, batch["attention_mask"], initial, begins)
            x = constrain(x + read if i else x, "batch", "length", "embed")
            layers.append(x)
            states.append(state)
        return layers, states


def _begins(batch: Batch, reverse: bool) -> jax.Array | None:
    """Return where a packed sequence begins for a direction, bool [B, L]; None if rows are not packed."""
    if (ids := batch.get("sequence_ids")) is None:
        return None
    changes = ids[:, 1:] != ids[:, :-1]
    return jnp.pad(changes, ((0, 0), (0, 1) if reverse else (1, 0)))


class Encoder(nn.Module):
    """Applies the embeddings and ``num_layers`` layers of each direction."""

    config: Config
    # ``past_hidden`` and ``past_cells`` are read too, if they are there. Packed rows have ``position_ids``.
    reads: ClassVar[frozenset[str]] = frozenset({"sequence_ids", "position_ids"})

    @staticmethod
    def past(config: Config) -> dict[str, Feature]:
        """Return the arrays of memory of a row; {} of a model without memory."""
        if not config.memory_length:
            return {}
        widths = {"past_hidden": config.embedding_size, "past_cells": config.cell_size}
        return {name: Feature((config.num_layers, n), str(config.param_dtype)) for name, n in widths.items()}

    def setup(self) -> None:
        self.embeddings = _Embeddings(self.config)
        self.forward, self.backward = _Direction(self.config, reverse=False), _Direction(self.config, reverse=True)

    def __call__(
        self, batch: Batch, rng: RowRng | None = None, hidden_states: Literal["last", "all"] = "last"
    ) -> Encoding:
        """Encode ``input_ids``, ``attention_mask`` and the features in ``reads``, each [B, L].

        If ``rng`` is None, there is no dropout. The vectors at padding are zeros, but for the first of "all" hidden
        states, the embeddings, which are there twice. With ``past_hidden`` and ``past_cells``, ``Encoding.past`` is the
        state after the row.
        """
        x = self.embeddings(batch)
        forward, states = self.forward(x, batch, rng and rng.site("forward"))
        backward, _ = self.backward(x, batch, rng and rng.site("backward"))
        layers = [jnp.concatenate(pair, axis=-1) for pair in zip([x, *forward], [x, *backward], strict=True)]
        last = dropout(layers[-1], self.config.dropout_rate, rng, "output")
        hidden = jnp.stack(layers) if hidden_states == "all" else None
        past = _past_after(states) if "past_cells" in batch else None
        return Encoding(last, self.embeddings.word_embeddings, hidden, past=past)


def _past_after(states: list[State]) -> dict[str, jax.Array]:
    hidden, cells = (jnp.stack(of_layers, axis=1) for of_layers in zip(*states, strict=True))
    return jax.lax.stop_gradient({"past_hidden": hidden, "past_cells": cells})  # type: ignore[no-any-return]


class Pooler(heads.Head):
    """Takes what each direction has where it has read the whole text: at its last and at its first token.

    It has no parameters.
    """

    reads: ClassVar[tuple[str, ...]] = ("cls_positions",)

    def __call__(self, outputs: heads.Outputs, batch: Batch, rng: RowRng | None) -> dict[str, jax.Array]:
        """Return pooled [B, K, D] of packed rows, which have ``cls_positions`` [B, K]; else [B, D]."""
        ids, places = batch.get("sequence_ids", batch["attention_mask"]), batch.get("cls_positions")
        count = 1 if places is None else places.shape[1]
        own = ids[:, None, :] == jnp.arange(1, count + 1)[None, :, None]  # [B, K, L]: the tokens of each text
        first, last = jnp.argmax(own, axis=2), ids.shape[1] - 1 - jnp.argmax(own[:, :, ::-1], axis=2)
        directions = jnp.split(outputs["sequence"], 2, axis=-1)
        pooled = jnp.concatenate([gather(x, at) for x, at in zip(directions, (last, first), strict=True)], axis=-1)
        return {"pooled": pooled[:, 0] if places is None else pooled}


class LmHead(heads.Head):
    """Predicts the token after each token, and the token before it, by one softmax with weights apart from the encoder.

    bilm-tf samples 8,192 pieces for the sum of the softmax in training; here all pieces are in the sum. Parameters:
    ``word_embeddings`` [V, P], ``output_bias`` [V].
    """

    @nn.compact
    def __call__(self, outputs: heads.Outputs, batch: Batch, rng: RowRng | None) -> dict[str, jax.Array]:
        """Return forward_logits and backward_logits [B, L, V] float32 (or wider)."""
        config, shape = self.config, (self.config.vocab_size, self.config.embedding_size)
        scale = 1 / (math.sqrt(config.embedding_size) * config.initializer_range)
        table = self.param(
            "word_embeddings", with_axes(normal(config, scale), "vocab", "embed"), shape, config.param_dtype
        )
        bias = self.param("output_bias", with_axes(nn.initializers.zeros, "vocab"), shape[:1], config.param_dtype)
        found = {}
        for name, x in zip(("forward", "backward"), jnp.split(outputs["sequence"], 2, axis=-1), strict=True):
            logits = heads.decode(config, x, table) + bias[None, None, :]
            found[f"{name}_logits"] = constrain(logits, "batch", None, "vocab")
        return found


def _size(num_layers: int, width: int, cells: int) -> dict[str, int]:
    """Return the fields of a config whose directions have this width."""
    return {"num_layers": num_layers, "hidden_size": 2 * width, "cell_size": cells}


# The four models of allenai/bilm-tf (allennlp.org/elmo): original and 5.5B, small, medium. Tiny and mini are our own.
SIZES: dict[str, dict[str, int]] = {
    "base": _size(2, 512, 4096),
    "small": _size(2, 128, 1024),
    "medium": _size(2, 256, 2048),
    "tiny": _size(2, 64, 256),
    "mini": _size(2, 128, 512),
}
