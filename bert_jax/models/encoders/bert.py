"""BERT (Devlin et al. 2019): learned positions, segment embeddings, layers normalised after each residual sum.

Parameters (of unrolled layers; scanned layers are stacked under ``layers``)::

    embeddings/{word_embeddings, position_embeddings, token_type_embeddings, layer_norm/{scale, bias}}
    layer_<i>/attention/{query, key, value, output}/{kernel, bias}
    layer_<i>/mlp/{input, output}/{kernel, bias}
    layer_<i>/{attention_layer_norm, mlp_layer_norm}/{scale, bias}

An encoder whose embeddings have a width of their own, such as ELECTRA or ALBERT, has ``embedding_projection/{kernel,
bias}`` too, which takes them to the width of the layers.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

import jax
from flax import linen as nn

from bert_jax.errors import UserError
from bert_jax.models.config import TransformerConfig
from bert_jax.models.dropout import RowRng, dropout
from bert_jax.models.encoding import Encoding
from bert_jax.models.gradients import look_up, spread
from bert_jax.models.heads import LmHead as LmHead
from bert_jax.models.heads import Pooler as Pooler
from bert_jax.models.placement import constrain
from bert_jax.models.primitives import Dense, LayerNorm, activation_dtype, normal, with_axes
from bert_jax.models.transformer import READS, add_layers, context_of, run_layers
from bert_jax.records import Batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(TransformerConfig):
    """The settings of a BERT encoder. Defaults are BERT-base.

    Attributes:
      attention: "bidirectional" lets a token see its whole sequence. "causal" lets it see only itself and the tokens to
        its left (the left-to-right model of section 5.1). No key of a recipe: the objective of pretraining says it.
    """

    type_vocab_size: int = 2  # number of kinds of segments
    attention: Literal["bidirectional", "causal"] = "bidirectional"

    @property
    def causal(self) -> bool:
        return self.attention == "causal"


class Embeddings(nn.Module):
    """Sums word, position and token-type embeddings, then applies layer norm and dropout (figure 2).

    A config with ``type_vocab_size`` 0 has no token types. A config with a ``task_type_vocab_size`` has task embeddings
    in the sum (``encoders.ernie``).
    """

    config: TransformerConfig

    def setup(self) -> None:
        config, initializer = self.config, normal(self.config)
        sizes = {"token_type": config.type_vocab_size, "task_type": config.task_type_vocab_size}
        self.types = {name: size for name, size in sizes.items() if size}
        tables = {
            "word_embeddings": (config.vocab_size, "vocab"),
            "position_embeddings": (config.max_length, None),
            **{f"{name}_embeddings": (size, None) for name, size in self.types.items()},
        }
        for name, (rows, axis) in tables.items():
            shape = (rows, config.embedding_size)
            setattr(self, name, self.param(name, with_axes(initializer, axis, "embed"), shape, config.param_dtype))
        self.layer_norm = LayerNorm(config)

    def __call__(self, batch: Batch, rng: RowRng | None) -> jax.Array:
        """Return embeddings [B, L, E] for ``input_ids`` and, if there are such types, ``token_type_ids`` [B, L].

        If there are task types, ``task_type_ids`` [B, L] is read too. Without ``position_ids``, positions count from 0.
        """
        input_ids, position_ids = batch["input_ids"], batch.get("position_ids")
        length = input_ids.shape[1]
        if length > self.config.max_length:
            raise UserError(f"rows of {length} positions exceed the model's {self.config.max_length}; shorten them")
        dtype = activation_dtype(self.config)
        words = look_up(self.word_embeddings, input_ids, dtype)  # [B, L, E]
        if position_ids is None:
            positions = spread(self.position_embeddings[:length], words.shape, dtype)
        else:
            positions = look_up(self.position_embeddings, position_ids, dtype)
        x = words + positions
        for name, size in self.types.items():
            # A product with one-hot rows: the gradient of a look-up would add all tokens into the same few rows.
            types = jax.nn.one_hot(batch[f"{name}_ids"], size, dtype=dtype)
            x = x + types @ getattr(self, f"{name}_embeddings").astype(dtype)
        x = dropout(self.layer_norm(x), self.config.dropout_rate, rng, "embeddings")
        return constrain(x, "batch", "length", "embed")


class Encoder(nn.Module):
    """Applies the embeddings, their projection if the config has one, and then ``num_layers`` layers."""

    config: TransformerConfig
    reads: ClassVar[frozenset[str]] = READS | {"token_type_ids", "position_ids"}

    def setup(self) -> None:
        config = self.config
        self.embeddings = Embeddings(config)
        if config.embedding_projection:
            narrow, wide = ((None, config.embedding_size),), (("embed", config.hidden_size),)
            self.embedding_projection = Dense(config, narrow, wide)
        add_layers(self, config)

    def __call__(
        self, batch: Batch, rng: RowRng | None = None, hidden_states: Literal["last", "all"] = "last"
    ) -> Encoding:
        """Encode ``input_ids``, ``attention_mask`` and the features in ``reads``, each [B, L].

        If ``rng`` is None, there is no dropout. The first of "all" hidden states is what the first layer reads.
        """
        x: jax.Array = self.embeddings(batch, rng)
        if self.config.embedding_projection:
            x = constrain(self.embedding_projection(x), "batch", "length", "embed")
        x, stacked = run_layers(self, x, context_of(self.config, batch), rng)
        hidden = stacked() if hidden_states == "all" else None
        return Encoding(x, self.embeddings.word_embeddings, hidden)


def size_of(num_layers: int, hidden_size: int, num_heads: int, **others: int) -> dict[str, int]:
    """Return the fields of a config with these numbers, whose MLP is four times as wide as its layers."""
    return {
        "num_layers": num_layers,
        "hidden_size": hidden_size,
        "num_heads": num_heads,
        "mlp_dim": 4 * hidden_size,
        **others,
    }


# Devlin et al. 2019, section 3 and table 6 (ablation over model size).
_PAPER = {
    "base": size_of(12, 768, 12),
    "large": size_of(24, 1024, 16),
    "table6_L3_H768_A12": size_of(3, 768, 12),
    "table6_L6_H768_A3": size_of(6, 768, 3),
    "table6_L6_H768_A12": size_of(6, 768, 12),
    "table6_L12_H768_A12": size_of(12, 768, 12),
    "table6_L12_H1024_A16": size_of(12, 1024, 16),
    "table6_L24_H1024_A16": size_of(24, 1024, 16),
}

# The 24 small models of google-research/bert (Turc et al. 2019, "Well-Read Students Learn Better"): heads of width 64.
_GRID = {f"L{n}_H{d}": size_of(n, d, d // 64) for n in (2, 4, 6, 8, 10, 12) for d in (128, 256, 512, 768)}
_SMALL = {"tiny": _GRID["L2_H128"], "mini": _GRID["L4_H256"], "small": _GRID["L4_H512"], "medium": _GRID["L8_H512"]}

SIZES: dict[str, dict[str, int]] = _PAPER | _SMALL | _GRID
