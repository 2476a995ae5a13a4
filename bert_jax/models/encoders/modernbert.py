"""ModernBERT (Warner et al. 2024, arXiv 2412.13663): rotary positions, local and global layers, gated MLPs, no biases.

Layers are normalised before attention and before the MLP. Every third layer sees the whole sequence, the others near
tokens (section 2.1). Parameters (of unrolled layers; scanned ones: ``models.transformer.add_layers``)::

    embeddings/{word_embeddings, layer_norm/scale}
    layer_<i>/attention_layer_norm/scale (not of layer 0), layer_<i>/attention/{qkv, output}/kernel
    layer_<i>/mlp_layer_norm/scale, layer_<i>/mlp/{input, output}/kernel
    layer_norm/scale
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.configuration import check_fields
from bert_jax.errors import UserError
from bert_jax.models import heads
from bert_jax.models.config import Block, ModelConfig, TransformerConfig
from bert_jax.models.dropout import RowRng, dropout
from bert_jax.models.encoding import Encoding
from bert_jax.models.gradients import gather, look_up
from bert_jax.models.heads import LmHead as LmHead
from bert_jax.models.placement import constrain
from bert_jax.models.primitives import ACTIVATIONS, Dense, LayerNorm, activation_dtype, normal, with_axes
from bert_jax.models.transformer import READS, add_layers, context_of, run_layers
from bert_jax.records import Batch


@dataclasses.dataclass(frozen=True)
class Config(TransformerConfig):
    """The settings of a ModernBERT encoder. Defaults are ModernBERT-base at the end of its training.

    Before it was extended to rows of 8,192, its ``global_theta`` was 10,000 (AnswerDotAI/ModernBERT, yamls/modernbert).
    """

    num_layers: int = 22  # layers of the encoder
    num_heads: int = 12  # attention heads of a layer; they divide hidden_size
    mlp_dim: int = 1152  # width inside the feed-forward part of a layer, of the activated half and of the gate
    _: dataclasses.KW_ONLY
    max_length: int = 8192  # the most positions of a row
    dropout_rate: float = 0.0  # as published: none on embeddings and on what the MLP adds
    attention_dropout_rate: float = 0.0  # as published
    attention_output_dropout_rate: float = 0.1  # dropout on the output of attention; as published
    layer_norm_eps: float = 1e-5  # as published
    global_every: int = 3  # each so many layers, from the first on, see the whole sequence
    local_attention: int = 128  # the other layers see half as many tokens to the left, and as many to the right
    global_theta: float = 160_000.0  # base of the rotary positions of layers that see all
    local_theta: float = 10_000.0  # base of the rotary positions of the other layers
    # of a text's vectors, before a text classifier: that of [CLS], or their mean
    classifier_pooling: Literal["cls", "mean"] = "mean"
    classifier_dropout_rate: float = 0.0  # dropout before a classifier

    rotary_bases: ClassVar[tuple[str, ...]] = ("global_theta", "local_theta")

    def __post_init__(self) -> None:
        super().__post_init__()
        where = "config.model"
        check_fields(self, where, "at least 1 is needed", "global_every", sound=lambda value: value >= 1)
        even = "an even number from 2 to 2,147,483,646 is needed"
        check_fields(self, where, even, "local_attention", sound=lambda value: 2 <= value < 1 << 31 and value % 2 == 0)
        check_fields(self, where, "more than 1 is needed", *self.rotary_bases, sound=lambda value: value > 1)
        if self.head_dim % 2:
            raise UserError(
                f"{where}: {self.num_heads} heads have a width of {self.head_dim}; rotary positions turn pairs, so the "
                "width has to be even: take another num_heads"
            )

    def check_longer_rows(self, phases: Sequence[tuple[str, int, Mapping[str, Any]]]) -> None:
        """Raise ``UserError`` if rows become much longer in a phase that does not say what ``global_theta`` it has.

        With the base of short rows, positions turn too fast for far tokens (ModernBERT: 10,000, then 160,000).
        """
        longest: dict[float, int] = {}  # base -> the longest rows that were trained with it
        for where, length, replaced in phases:
            base = replaced.get("global_theta", self.global_theta)
            before = longest.get(base, min(longest.values(), default=length))
            if length >= 4 * before and "global_theta" not in replaced:
                raise UserError(
                    f"{where}.max_length is {length:,}, and rows before have at most {before:,}; say which base "
                    f"rotary positions have in such rows: --{where}.model.global_theta=160000.0 (that of ModernBERT), "
                    f"or {self.global_theta} to keep that of config.model"
                )
            longest[base] = max(before, length)

    @property
    def biases(self) -> bool:
        return False

    @property
    def classifier_scale(self) -> float:
        return float(self.hidden_size**-0.5 / self.initializer_range)

    @property
    def span_dropout_rate(self) -> float:
        return self.classifier_dropout_rate

    @property
    def blocks(self) -> tuple[Block, ...]:
        def block(number: int) -> Block:
            sees_all = number % self.global_every == 0
            return Block(
                norm="before",
                first_norm=number > 0,  # the embeddings are normalised already
                gated=True,
                fused=True,
                output_scale=1 / math.sqrt(2 * self.num_layers),
                rotation=self.global_theta if sees_all else self.local_theta,
                window=None if sees_all else self.local_attention // 2,
            )

        return tuple(map(block, range(self.num_layers)))


class Embeddings(nn.Module):
    """The embeddings of words, normalised."""

    config: ModelConfig

    def setup(self) -> None:
        config = self.config
        table = with_axes(normal(config), "vocab", "embed")
        shape = (config.vocab_size, config.hidden_size)
        self.word_embeddings = self.param("word_embeddings", table, shape, config.param_dtype)
        self.layer_norm = LayerNorm(config)

    def __call__(self, batch: Batch, rng: RowRng | None) -> jax.Array:
        """Return embeddings [B, L, D] for ``input_ids`` [B, L]."""
        words = look_up(self.word_embeddings, batch["input_ids"], activation_dtype(self.config))
        x = dropout(self.layer_norm(words), self.config.dropout_rate, rng, "embeddings")
        return constrain(x, "batch", "length", "embed")


class Encoder(nn.Module):
    """Applies the embeddings, the layers that ``config.blocks`` describes, and a last layer norm.

    It is the encoder of any rotary Transformer whose layers are normalised before attention and before the MLP.
    """

    config: TransformerConfig
    reads: ClassVar[frozenset[str]] = READS | {"position_ids"}

    def setup(self) -> None:
        self.embeddings = Embeddings(self.config)
        add_layers(self, self.config)
        self.layer_norm = LayerNorm(self.config)

    def __call__(
        self, batch: Batch, rng: RowRng | None = None, hidden_states: Literal["last", "all"] = "last"
    ) -> Encoding:
        """Encode ``input_ids``, ``attention_mask`` and the features in ``reads``, each [B, L].

        If ``rng`` is None, there is no dropout. The last of "all" hidden states is normalised, as in transformers.
        """
        length, most = batch["input_ids"].shape[1], self.config.max_length
        if length > most:
            raise UserError(f"rows of {length} positions exceed the model's {most}; shorten them")
        x, stacked = run_layers(self, self.embeddings(batch, rng), context_of(self.config, batch), rng)
        x = self.layer_norm(x)
        hidden = jnp.concatenate([stacked()[:-1], x[None]]) if hidden_states == "all" else None
        return Encoding(x, self.embeddings.word_embeddings, hidden)


class _Transform(heads.Head):
    """The layers before the last layer of each head: a dense layer, activation and layer norm, as in ``LmHead``."""

    begins_as: ClassVar[str] = "mlm_head"

    def transformed(self, x: jax.Array) -> jax.Array:
        """Return [..., D] for x [..., D]; call this in a method that is ``nn.compact``."""
        config, size = self.config, self.config.hidden_size
        dense = Dense(config, (("embed", size),), ((None, size),), bias=config.biases, name="transform")
        return LayerNorm(config, name="layer_norm")(ACTIVATIONS[config.activation](dense(x)))


class Pooler(_Transform):
    """Makes a vector of each text, the mean of its tokens' vectors or the vector of [CLS], and transforms it."""

    reads: ClassVar[tuple[str, ...]] = ("cls_positions",)

    @nn.compact
    def __call__(self, outputs: heads.Outputs, batch: Batch, rng: RowRng | None) -> dict[str, jax.Array]:
        """Return pooled [B, K, D] of packed rows, which have ``cls_positions`` [B, K]; else [B, D]."""
        sequence, places = outputs["sequence"], batch.get("cls_positions")
        mean = self.config.classifier_pooling == "mean"
        if places is None:
            x = heads.pool(sequence, batch["attention_mask"], "mean" if mean else "cls")
        elif mean:  # [B, K, L]: the tokens of each text
            ids = batch.get("sequence_ids", batch["attention_mask"])
            own = ids[:, None, :] == jnp.arange(1, places.shape[1] + 1)[None, :, None]
            weights = own / jnp.maximum(jnp.sum(own, axis=-1, keepdims=True), 1)
            x = jnp.einsum("bkl,bld->bkd", weights.astype(self.config.param_dtype), sequence)
        else:
            x = gather(sequence, places)
        return {"pooled": self.transformed(x.astype(sequence.dtype))}


class TokenHead(_Transform):
    """Transforms the vector of each token, before a classifier of tokens."""

    @nn.compact
    def __call__(self, outputs: heads.Outputs, batch: Batch, rng: RowRng | None) -> dict[str, jax.Array]:
        """Return sequence [B, L, D]."""
        return {"sequence": self.transformed(outputs["sequence"])}


def _size(num_layers: int, hidden_size: int, mlp_dim: int) -> dict[str, int]:
    heads = hidden_size // 64
    return {"num_layers": num_layers, "hidden_size": hidden_size, "num_heads": heads, "mlp_dim": mlp_dim}


# ModernBERT's two (table 4), Ettin's six (Weller et al. 2025, arXiv 2507.11412, table 1), and two for small machines.
SIZES: dict[str, dict[str, int]] = {
    "base": _size(22, 768, 1152),
    "large": _size(28, 1024, 2624),
    "ettin_17m": _size(7, 256, 384),
    "ettin_32m": _size(10, 384, 576),
    "ettin_68m": _size(19, 512, 768),
    "ettin_150m": _size(22, 768, 1152),
    "ettin_400m": _size(28, 1024, 2624),
    "ettin_1b": _size(28, 1792, 3840),
    "tiny": _size(4, 128, 192),
    "small": _size(10, 384, 576),
}
