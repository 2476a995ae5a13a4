"""Transformer-XL (Dai et al. 2019): relative positions, a memory of the text before a row, a text read left to right.

The form is kimiyoung/transformer-xl, pytorch/mem_transformer.py, with ``attn_type`` 0: embeddings times the root of
their width, layers normalised after each residual sum, an output that is tied to the embeddings. Its adaptive softmax
and embeddings, which group a vocabulary of hundreds of thousands of words by frequency, are not built: a vocabulary of
pieces needs none. Parameters (of unrolled layers; scanned layers are stacked under ``layers``)::

    embeddings/word_embeddings, content_bias, distance_bias                     u and v of section 3.3
    layer_<i>/attention/{query, key, value, distance, output}/kernel
    layer_<i>/mlp/{input, output}/{kernel, bias}
    layer_<i>/{attention_layer_norm, mlp_layer_norm}/{scale, bias}
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.errors import UserError
from bert_jax.models import heads, relative
from bert_jax.models.config import Block
from bert_jax.models.dropout import RowRng, dropout
from bert_jax.models.encoders.bert import size_of
from bert_jax.models.encoders.gpt2 import Pooler as Pooler
from bert_jax.models.encoding import Encoding
from bert_jax.models.gradients import look_up
from bert_jax.models.placement import constrain
from bert_jax.models.primitives import activation_dtype, normal, with_axes
from bert_jax.models.relative import RelativeConfig
from bert_jax.models.transformer import READS, add_layers, context_of, run_layers
from bert_jax.records import Batch, Feature


@dataclasses.dataclass(frozen=True)
class Config(RelativeConfig):
    """The settings of a Transformer-XL. Defaults are the smaller model of WikiText-103, without its memory of 150.

    Attributes:
      span: what a token sees of the memory and of the row up to itself: "all", or the last ``memory_length`` positions,
        itself included, so that all tokens see the "same length" (``same_length`` of the release).
    """

    num_layers: int = 16  # layers of the encoder
    hidden_size: int = 410  # width of the vectors of tokens
    num_heads: int = 10  # attention heads of a layer; they divide hidden_size
    mlp_dim: int = 2100  # width inside the feed-forward part of a layer
    _: dataclasses.KW_ONLY
    memory_length: int = 0  # positions before a row that its tokens see; 0: the model has no memory
    span: Literal["all", "same length"] = "all"
    activation: Literal["gelu", "gelu_tanh", "relu"] = "relu"  # as published
    layer_norm_eps: float = 1e-5  # as published
    attention_dropout_rate: float = 0.0  # as published

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.span == "same length" and self.memory_length < 2:
            raise UserError(
                f"config.model.span is 'same length', and memory_length is {self.memory_length}: a token sees so many "
                "positions; give 2 or more, or span 'all'"
            )

    @property
    def causal(self) -> bool:
        return True

    @property
    def blocks(self) -> tuple[Block, ...]:
        window = self.memory_length - 1 if self.span == "same length" else None
        return (Block(relative="share", window=window, inner_dropout_rate=self.dropout_rate),) * self.num_layers

    def train_flops(self, length: int, num_masked: int = 0, num_pooled: int = 0) -> float:
        """Return the FLOPs as the base class does, without the dense layers that the heads do not have."""
        dense = (num_masked + num_pooled) * self.hidden_size**2
        return super().train_flops(length, num_masked, num_pooled) - 6.0 * dense


class Embeddings(nn.Module):
    """The embeddings of words, times the root of their width, or as they are.

    Attributes:
      scale: what the embeddings are multiplied by.
    """

    config: RelativeConfig
    scale: float = 1.0

    def setup(self) -> None:
        config = self.config
        table, shape = with_axes(normal(config), "vocab", "embed"), (config.vocab_size, config.hidden_size)
        self.word_embeddings = self.param("word_embeddings", table, shape, config.param_dtype)

    def __call__(self, batch: Batch, rng: RowRng | None) -> jax.Array:
        """Return embeddings [B, L, D] for ``input_ids`` [B, L]."""
        dtype = activation_dtype(self.config)
        words = look_up(self.word_embeddings, batch["input_ids"], dtype) * jnp.asarray(self.scale, dtype)
        return constrain(dropout(words, self.config.dropout_rate, rng, "embeddings"), "batch", "length", "embed")


class Encoder(nn.Module):
    """Applies the embeddings and ``num_layers`` layers of relative attention."""

    config: Config
    # ``past_states`` and ``past_mask`` are read too, if they are there; they come from the step before.
    reads: ClassVar[frozenset[str]] = READS | {"position_ids"}

    @staticmethod
    def past(config: Config) -> dict[str, Feature]:
        """Return the arrays of memory of a row; {} of a model without memory."""
        return relative.past_of(config)

    def setup(self) -> None:
        config = self.config
        self.embeddings = Embeddings(config, math.sqrt(config.hidden_size))
        table, shape = with_axes(normal(config), "heads", "head_dim"), (config.num_heads, config.head_dim)
        self.content_bias, self.distance_bias = (
            self.param(name, table, shape, config.param_dtype) for name in ("content_bias", "distance_bias")
        )
        add_layers(self, config)

    def __call__(
        self, batch: Batch, rng: RowRng | None = None, hidden_states: Literal["last", "all"] = "last"
    ) -> Encoding:
        """Encode ``input_ids``, ``attention_mask`` and the features in ``reads``, each [B, L].

        If ``rng`` is None, there is no dropout. With ``past_states`` and ``past_mask``, all tokens see the memory, and
        ``Encoding.past`` is the memory after the row.
        """
        config, biases = self.config, (self.content_bias, self.distance_bias)
        context = relative.with_distances(config, batch, context_of(config, batch), rng, biases)
        x, stacked = run_layers(self, self.embeddings(batch, rng), context, rng)
        past = relative.past_after(batch, stacked()[:-1]) if "past_states" in batch else None
        x = dropout(x, config.dropout_rate, rng, "output")
        hidden = stacked() if hidden_states == "all" else None
        return Encoding(x, self.embeddings.word_embeddings, hidden, past=past)


class LmHead(heads.LmHead):
    """Predicts tokens by a product with the word embeddings and a bias, ``output_bias``."""

    @nn.compact
    def __call__(self, outputs: heads.Outputs, batch: Batch, rng: RowRng | None) -> dict[str, jax.Array]:
        """Return ``logits`` [B, P, V] float32 (or wider) for the vectors that ``vectors`` returns."""
        config, zeros = self.config, with_axes(nn.initializers.zeros, "vocab")
        logits = heads.decode(config, self.vectors(outputs, batch), outputs["word_embeddings"])
        logits += self.param("output_bias", zeros, (config.vocab_size,), config.param_dtype)[None, None, :]
        return {self.logits: constrain(logits, "batch", None, "vocab")}


# The models of kimiyoung/transformer-xl, pytorch/scripts, and small ones.
SIZES: dict[str, dict[str, int]] = {
    "base": size_of(16, 410, 10, mlp_dim=2100),
    "large": size_of(18, 1024, 16),
    "enwik8": size_of(12, 512, 8),
    "enwik8_large": size_of(24, 1024, 8, mlp_dim=3072),
    "tiny": size_of(2, 128, 2),
    "mini": size_of(4, 256, 4),
    "small": size_of(4, 512, 8),
}
