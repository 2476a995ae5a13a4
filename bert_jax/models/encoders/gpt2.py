"""GPT-2 (Radford et al. 2019): learned positions, layers normalised before each part, a text read from left to right.

The form is transformers' GPT2Model, which computes what openai/gpt-2, src/model.py, does. Parameters (of unrolled
layers; scanned layers are stacked under ``layers``)::

    embeddings/{word_embeddings, position_embeddings}
    layer_<i>/{attention_layer_norm, mlp_layer_norm}/{scale, bias}
    layer_<i>/attention/{qkv, output}/{kernel, bias}
    layer_<i>/mlp/{input, output}/{kernel, bias}
    layer_norm/{scale, bias}

The heads have no parameters: tokens are predicted by the word embeddings, and a text's vector is its last token's.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.errors import UserError
from bert_jax.models import heads
from bert_jax.models.config import Block, TransformerConfig
from bert_jax.models.dropout import RowRng, dropout
from bert_jax.models.encoders.bert import size_of
from bert_jax.models.encoding import Encoding
from bert_jax.models.gradients import gather, look_up, spread
from bert_jax.models.placement import constrain
from bert_jax.models.primitives import LayerNorm, activation_dtype, normal, with_axes
from bert_jax.models.transformer import READS, add_layers, context_of, run_layers
from bert_jax.records import Batch


@dataclasses.dataclass(frozen=True)
class Config(TransformerConfig):
    """The settings of a GPT-2. Defaults are the smallest published model.

    Initial weights have a standard deviation of 0.02. The kernels that project back to the vectors of tokens have it
    divided by the root of the number of these kernels, 2N (section 2.3).
    """

    _: dataclasses.KW_ONLY
    max_length: int = 1024  # the most positions of a row
    activation: Literal["gelu", "gelu_tanh", "relu"] = "gelu_tanh"  # as published
    layer_norm_eps: float = 1e-5  # as published
    embedding_dropout_rate: float = 0.1  # dropout on the sum of the embeddings

    @property
    def causal(self) -> bool:
        return True

    def train_flops(self, length: int, num_masked: int = 0, num_pooled: int = 0) -> float:
        """Return the FLOPs as the base class does, without the dense layers that the heads of a GPT do not have."""
        dense = num_masked * self.hidden_size**2 + num_pooled * self.hidden_size**2
        return super().train_flops(length, num_masked, num_pooled) - 6.0 * dense

    @property
    def blocks(self) -> tuple[Block, ...]:
        block = Block(norm="before", fused=True, output_scale=1 / math.sqrt(2 * self.num_layers))
        return (block,) * self.num_layers


class _Embeddings(nn.Module):
    """The sum of the embeddings of words and of positions, not normalised."""

    config: Config

    def setup(self) -> None:
        config = self.config
        for name, rows, axis in (("word", config.vocab_size, "vocab"), ("position", config.max_length, None)):
            table, shape = with_axes(normal(config), axis, "embed"), (rows, config.hidden_size)
            setattr(self, f"{name}_embeddings", self.param(f"{name}_embeddings", table, shape, config.param_dtype))

    def __call__(self, batch: Batch, rng: RowRng | None) -> jax.Array:
        """Return embeddings [B, L, D] for ``input_ids`` [B, L]. Without ``position_ids``, positions count from 0."""
        config, positions = self.config, batch.get("position_ids")
        length = batch["input_ids"].shape[1]
        if length > config.max_length:
            raise UserError(f"rows of {length} positions exceed the model's {config.max_length}; shorten them")
        dtype = activation_dtype(config)
        words = look_up(self.word_embeddings, batch["input_ids"], dtype)
        if positions is None:
            places = spread(self.position_embeddings[:length], words.shape, dtype)
        else:
            places = look_up(self.position_embeddings, positions, dtype)
        x = dropout(words + places, config.embedding_dropout_rate, rng, "embeddings")
        return constrain(x, "batch", "length", "embed")


class Encoder(nn.Module):
    """Applies the embeddings, ``num_layers`` layers and, if ``norm_at_end``, a last layer norm."""

    config: Config
    reads: ClassVar[frozenset[str]] = READS | {"position_ids"}
    norm_at_end: ClassVar[bool] = True

    def setup(self) -> None:
        self.embeddings = _Embeddings(self.config)
        add_layers(self, self.config)
        if self.norm_at_end:
            self.layer_norm = LayerNorm(self.config)

    def __call__(
        self, batch: Batch, rng: RowRng | None = None, hidden_states: Literal["last", "all"] = "last"
    ) -> Encoding:
        """Encode ``input_ids``, ``attention_mask`` and the features in ``reads``, each [B, L].

        If ``rng`` is None, there is no dropout. The last of "all" hidden states is what the last layer norm returns, as
        in transformers.
        """
        x, stacked = run_layers(self, self.embeddings(batch, rng), context_of(self.config, batch), rng)
        last = self.layer_norm(x) if self.norm_at_end else x
        hidden = jnp.concatenate([stacked()[:-1], last[None]]) if hidden_states == "all" else None
        return Encoding(last, self.embeddings.word_embeddings, hidden)


class Pooler(heads.Head):
    """Takes the vector of the last token of each text, which alone has seen the whole text. It has no parameters."""

    reads: ClassVar[tuple[str, ...]] = ("cls_positions",)

    def __call__(self, outputs: heads.Outputs, batch: Batch, rng: RowRng | None) -> dict[str, jax.Array]:
        """Return pooled [B, K, D] of packed rows, whose ``cls_positions`` [B, K] are last tokens; else [B, D]."""
        places = batch.get("cls_positions")
        if places is not None:
            return {"pooled": gather(outputs["sequence"], places)}
        last = heads.summary_positions(self.config, batch["attention_mask"])
        return {"pooled": gather(outputs["sequence"], last)[:, 0]}


class LmHead(heads.LmHead):
    """Predicts tokens by a product with the word embeddings, without another layer or a bias. It has no parameters."""

    def __call__(self, outputs: heads.Outputs, batch: Batch, rng: RowRng | None) -> dict[str, jax.Array]:
        """Return ``logits`` [B, P, V] float32 (or wider) for the vectors at ``masked_positions`` [B, P]."""
        logits = heads.decode(self.config, self.vectors(outputs, batch), outputs["word_embeddings"])
        return {self.logits: constrain(logits, "batch", None, "vocab")}


# Radford et al. 2019, table 2. The repository openai/gpt-2 calls them 124M, 355M, 774M and 1558M. Tiny is our own.
SIZES: dict[str, dict[str, int]] = {
    "small": size_of(12, 768, 12),
    "medium": size_of(24, 1024, 16),
    "large": size_of(36, 1280, 20),
    "xl": size_of(48, 1600, 25),
    "tiny": size_of(4, 128, 2),
}
