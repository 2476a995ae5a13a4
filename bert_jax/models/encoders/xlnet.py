"""XLNet (Yang et al. 2019): relative attention, an order in which tokens are predicted, and two streams.

A row of text is read in any order, which the batch says by ``order_ids``, the rank of each position: a token sees the
tokens of its rank and below. The vectors of the **content stream** are of what a token is; it is what fine-tuning uses.
With ``query_positions`` [B, P] there is a **query stream** too: P vectors that know their position, but not the token
there, and see what is of a lower rank (section 2.3). They begin as one learned vector. Both streams have the same
weights, and each layer computes them as one sequence of L + P vectors, of which the last P are no keys.

The form is transformers' XLNetModel, which computes what zihangdai/xlnet, modeling.py, does with ``untie_r``.
Parameters (of unrolled layers; scanned layers are stacked under ``layers``)::

    embeddings/word_embeddings, query_embedding
    layer_<i>/attention/{query, key, value, distance, output}/kernel
    layer_<i>/attention/{content_bias, distance_bias, segment_bias, segment_embeddings}
    layer_<i>/mlp/{input, output}/{kernel, bias}
    layer_<i>/{attention_layer_norm, mlp_layer_norm}/{scale, bias}
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.configuration import check_fields
from bert_jax.models import heads, relative
from bert_jax.models.config import Block
from bert_jax.models.dropout import RowRng, dropout
from bert_jax.models.encoders import transformer_xl
from bert_jax.models.encoders.bert import size_of
from bert_jax.models.encoding import Encoding
from bert_jax.models.gradients import spread
from bert_jax.models.heads import Pooler as Pooler
from bert_jax.models.placement import constrain
from bert_jax.models.primitives import activation_dtype, normal, with_axes
from bert_jax.models.relative import RelativeConfig
from bert_jax.models.transformer import READS, add_layers, context_of, run_layers
from bert_jax.records import Batch, Feature


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(RelativeConfig):
    """The settings of an XLNet. Defaults are XLNet-base, without its memory of 384.

    Segments are told apart by whether two tokens are of the same one, so a row may have any number of them. A memory
    is of segment 0, as in the release.
    """

    memory_length: int = 0  # positions before a row that its tokens see; 0: the model has no memory
    reuse_length: int = 0  # positions of a row, from its first on, that enter the memory; 0: all
    classifier_dropout_rate: float = 0.1  # dropout before a classifier of texts or of choices

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, "config.model", "0 or more is needed", "reuse_length", sound=lambda n: n >= 0)

    @property
    def type_vocab_size(self) -> int:
        """Two texts and [CLS]; there is no table of them."""
        return 3

    @property
    def summary(self) -> Literal["first", "last"]:
        return "last"

    @property
    def blocks(self) -> tuple[Block, ...]:
        return (Block(relative="own", inner_dropout_rate=self.dropout_rate),) * self.num_layers

    def train_flops(self, length: int, num_masked: int = 0, num_pooled: int = 0) -> float:
        """Return the FLOPs as the base class does, without the dense layer that ``LmHead`` does not have."""
        return super().train_flops(length, num_masked, num_pooled) - 6.0 * num_masked * self.hidden_size**2


class Encoder(nn.Module):
    """Applies the embeddings and ``num_layers`` layers of relative attention, to one or to two streams."""

    config: Config
    reads: ClassVar[frozenset[str]] = READS | {"token_type_ids", "position_ids"}
    reads_if_given: ClassVar[frozenset[str]] = frozenset({"query_positions", "past_states", "past_mask"})

    @staticmethod
    def past(config: Config) -> dict[str, Feature]:
        """Return the arrays of memory of a row; {} of a model without memory."""
        return relative.past_of(config)

    def setup(self) -> None:
        config = self.config
        self.embeddings = transformer_xl.Embeddings(config)
        vector, shape = with_axes(normal(config), None, None, "embed"), (1, 1, config.hidden_size)
        self.query_embedding = self.param("query_embedding", vector, shape, config.param_dtype)
        add_layers(self, config)

    def __call__(
        self, batch: Batch, rng: RowRng | None = None, hidden_states: Literal["last", "all"] = "last"
    ) -> Encoding:
        """Encode ``input_ids``, ``attention_mask`` and the features in ``reads``, each [B, L].

        If ``rng`` is None, there is no dropout. With ``query_positions``, ``Encoding.queries`` is the query stream; the
        vectors of the content stream, which ``hidden`` has alone, are the same with and without it. With
        ``past_states`` and ``past_mask``, all see the memory, and ``Encoding.past`` is the memory after the row.
        """
        config, places = self.config, batch.get("query_positions")
        x, length = self.embeddings(batch, rng), batch["input_ids"].shape[1]
        if places is not None:
            unknown = spread(self.query_embedding[0, 0], (*places.shape, config.hidden_size), activation_dtype(config))
            unknown = dropout(unknown, config.dropout_rate, rng, "query_embedding")
            x = constrain(jnp.concatenate([x, unknown], axis=1), "batch", "length", "embed")
        context = relative.with_distances(config, batch, context_of(config, batch), rng)
        x, stacked = run_layers(self, x, context, rng)
        past = None
        if "past_states" in batch:
            past = relative.past_after(batch, stacked()[:-1], config.reuse_length or length)
        x = dropout(x, config.dropout_rate, rng, "output")
        hidden = stacked()[:, :, :length] if hidden_states == "all" else None
        queries = None if places is None else x[:, length:]
        return Encoding(x[:, :length], self.embeddings.word_embeddings, hidden, queries, past)


class LmHead(transformer_xl.LmHead):
    """Predicts tokens from the query stream, or from the vectors of tokens if there is none; it has a bias."""

    def vectors(self, outputs: heads.Outputs, batch: Batch) -> jax.Array:
        """Return the vectors [B, P, D] at ``query_positions``, or else at ``masked_positions``."""
        return outputs["queries"] if "queries" in outputs else super().vectors(outputs, batch)


# Yang et al. 2019, sections 3.1 and A.4, and small ones.
SIZES: dict[str, dict[str, int]] = {
    "base": size_of(12, 768, 12),
    "large": size_of(24, 1024, 16),
    "tiny": size_of(2, 128, 2),
    "mini": size_of(4, 256, 4),
    "small": size_of(4, 512, 8),
}
