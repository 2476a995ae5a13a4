"""ERNIE of Tsinghua University (Zhang et al. 2019, arXiv 1905.07129): a BERT whose upper layers also read entities.

The lower layers, the T-encoder, are BERT's. The upper layers, the K-encoder, have two streams: the vectors of tokens,
and vectors of entities from a frozen table, each on the first token of a mention. In each K-layer both streams have
their own attention, and meet in the feed-forward part (section 3.3, equations 2 to 5)::

    hidden = gelu(W_t token + b_t + W_e entity + b_e)
    token  = norm(token + dense(hidden)),    entity = norm(entity + dense(hidden))

A token without an entity reads an entity of zeros, so b_e remains: such a token is not computed exactly as by a BERT.
The first K-layer has no attention between entities (thunlp/ERNIE, code/knowledge_bert/modeling.py: its kind is "mix",
and the kind of the others is "norm"). Nothing reads the entities after the last layer. Their dense layer and norm are
there because the published model has them; they get no gradient, and the dense layer decays.

Parameters: BERT's, and in each K-layer ::

    layer_<i>/mlp/{entity_input, entity_output}/{kernel, bias}, layer_<i>/entity_mlp_layer_norm/{scale, bias}
    layer_<i>/entity_attention/{query, key, value, output}/{kernel, bias}           not in the first K-layer
    layer_<i>/entity_attention_layer_norm/{scale, bias}                             not in the first K-layer
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.configuration import check_fields
from bert_jax.errors import UserError
from bert_jax.models.attention import Attention, Context
from bert_jax.models.config import Block, ModelConfig
from bert_jax.models.dropout import RowRng, dropout
from bert_jax.models.encoders import bert
from bert_jax.models.encoders.bert import SIZES as SIZES
from bert_jax.models.encoders.bert import LmHead as LmHead
from bert_jax.models.encoders.bert import Pooler as Pooler
from bert_jax.models.encoding import Encoding
from bert_jax.models.gradients import gather
from bert_jax.models.heads import Head, Outputs
from bert_jax.models.masks import Visible
from bert_jax.models.placement import constrain
from bert_jax.models.primitives import ACTIVATIONS, Dense, LayerNorm
from bert_jax.models.transformer import Layer, context_of, with_remat
from bert_jax.records import Batch

ENTITY_IDS, ENTITY_VECTORS = "entity_ids", "entity_vectors"
Streams = tuple[jax.Array, jax.Array]  # the vectors of tokens [B, L, D] and of entities [B, L, E]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(bert.Config):
    """The settings of an ERNIE with entities. Defaults are the released model: 5 layers of the T-encoder, 7 above."""

    # the lower layers, which read tokens alone, while the other layers read entities too; if None, 5 of 12
    num_token_layers: int | None = None
    entity_size: int = 100  # width of the vectors of entities
    num_entity_heads: int = 4  # attention heads among entities; they divide entity_size

    def __post_init__(self) -> None:
        super().__post_init__()
        where, layers, size = "config.model", self.num_layers, self.entity_size
        below = f"0 or more and below num_layers, {layers}, is needed"
        check_fields(self, where, below, "num_token_layers", sound=lambda n: n is None or 0 <= n < layers)
        check_fields(self, where, "at least 1 is needed", "entity_size", sound=lambda n: n >= 1)
        divides = f"a number that divides entity_size, {size}, is needed"
        check_fields(self, where, divides, "num_entity_heads", sound=lambda n: n >= 1 and size % n == 0)
        if self.layers == "scanned":
            raise UserError(
                f"{where}.layers is 'scanned', and the layers of encoder 'ernie_thu' are of three kinds, two of which "
                "have two streams; set it to 'unrolled'"
            )

    @property
    def first_with_entities(self) -> int:
        """The number of the first layer that reads entities, from 0."""
        return self.num_layers * 5 // 12 if self.num_token_layers is None else self.num_token_layers

    @property
    def of_entities(self) -> Self:
        """The settings of attention among entities: their width and heads, and no kernel, as entities have gaps."""
        narrow: dict[str, Any] = {"hidden_size": self.entity_size, "num_heads": self.num_entity_heads}
        return dataclasses.replace(self, **narrow, attention_kernel="plain")

    @property
    def num_parameters(self) -> int:
        return super().num_parameters + self._of_entities(0)

    def products(self, length: int) -> int:
        return super().products(length) + length * self._of_entities(length)

    def _of_entities(self, seen: int) -> int:
        """Return the multiply-adds of a position in the entity stream of all layers, if it sees ``seen`` positions."""
        size, layers = self.entity_size, self.num_layers - self.first_with_entities
        return layers * 2 * size * self.mlp_dim + (layers - 1) * (4 * size * size + 2 * size * seen)


class _Fusion(nn.Module):
    """The feed-forward part of a K-layer, in which tokens and entities meet."""

    config: Config

    @nn.compact
    def __call__(self, tokens: jax.Array, entities: jax.Array) -> Streams:
        """Return what is added to ``tokens`` [B, L, D] and to ``entities`` [B, L, E]."""
        config, inner = self.config, (("mlp", self.config.mlp_dim),)
        wide, narrow = (("embed", config.hidden_size),), (("embed", config.entity_size),)
        hidden = Dense(config, wide, inner, name="input")(tokens)
        hidden = hidden + Dense(config, narrow, inner, name="entity_input")(entities)
        hidden = constrain(ACTIVATIONS[config.activation](hidden), "batch", "length", "mlp")
        of_tokens = Dense(config, inner, wide, name="output")(hidden)
        return of_tokens, Dense(config, inner, narrow, name="entity_output")(hidden)


class _Aggregator(nn.Module):
    """A layer of the K-encoder.

    Attributes:
      attends: whether the entities of a row see each other.
    """

    config: Config
    attends: bool

    @nn.compact
    def __call__(self, streams: Streams, contexts: tuple[Context, Context], rng: RowRng | None, index: int) -> Streams:
        """Return the streams after layer ``index``; ``contexts`` are the context of tokens and the context of entities.

        Parameters and dropout of the token stream have the names of a BERT's layer.
        """
        config, (tokens, entities), (around, linked) = self.config, streams, contexts
        rng = rng and rng.site(index)
        attended = Attention(config, Block(), name="attention")(tokens, around, rng)
        tokens = self._sum("attention", tokens, attended, rng)
        if self.attends:
            attention = Attention(config.of_entities, Block(), name="entity_attention")
            attended = attention(entities, linked, rng and rng.site("entities"))
            entities = self._sum("entity_attention", entities, attended, rng)
        entities = entities * linked.visible.attention_mask[..., None].astype(entities.dtype)
        of_tokens, of_entities = _Fusion(config, name="mlp")(tokens, entities)
        tokens = constrain(self._sum("mlp", tokens, of_tokens, rng), "batch", "length", "embed")
        return tokens, self._sum("entity_mlp", entities, of_entities, rng)

    def _sum(self, name: str, x: jax.Array, change: jax.Array, rng: RowRng | None) -> jax.Array:
        """Return the normalised sum of ``x`` and, after dropout, the ``change`` that the part ``name`` makes."""
        x = x + dropout(change, self.config.dropout_rate, rng, f"{name}_output")
        return LayerNorm(self.config, name=f"{name}_layer_norm")(x)  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """Applies the embeddings, the T-encoder and the K-encoder."""

    config: Config
    reads: ClassVar[frozenset[str]] = bert.Encoder.reads
    reads_if_given: ClassVar[frozenset[str]] = frozenset({ENTITY_IDS, ENTITY_VECTORS})

    def setup(self) -> None:
        config = self.config
        self.embeddings = bert.Embeddings(config)
        below, above = with_remat(Layer, config), with_remat(_Aggregator, config)
        first = config.first_with_entities
        self.layer = [
            below(config, Block()) if number < first else above(config, attends=number > first)
            for number in range(config.num_layers)
        ]

    def __call__(
        self, batch: Batch, rng: RowRng | None = None, hidden_states: Literal["last", "all"] = "last"
    ) -> Encoding:
        """Encode ``input_ids``, ``attention_mask`` and the features in ``reads``, each [B, L].

        If the batch has them, ``entity_ids`` [B, L] is above 0 where an entity stands, and ``entity_vectors`` [B, L, E]
        has its vector there. Without them no entity stands anywhere. "all" hidden states are of tokens.
        """
        config = self.config
        x, context = self.embeddings(batch, rng), context_of(config, batch)
        vectors = batch.get(ENTITY_VECTORS, jnp.zeros((*x.shape[:2], config.entity_size)))
        streams, kept = (x, vectors.astype(x.dtype)), [x]
        contexts = context, context._replace(visible=_linked(batch, context.visible))
        for index, layer in enumerate(self.layer):
            if index < config.first_with_entities:
                streams = layer(streams[0], context, rng, index)[0], streams[1]
            else:
                streams = layer(streams, contexts, rng, index)
            kept.append(streams[0])
        hidden = jnp.stack(kept) if hidden_states == "all" else None
        return Encoding(streams[0], self.embeddings.word_embeddings, hidden)


def _linked(batch: Batch, visible: Visible) -> Visible:
    """Return which entities see each other: as ``visible`` says, but only tokens with an entity and each ``[CLS]``.

    At ``[CLS]`` stands a vector of zeros, which attention may fill (code/run_pretrain.py sets its mask to 1).
    """
    tokens = visible.attention_mask  # [B, L]
    places = batch.get("position_ids", jnp.arange(tokens.shape[1])[None])
    ids = batch.get(ENTITY_IDS, jnp.zeros_like(tokens))
    mask = ((tokens > 0) & ((ids > 0) | (places == 0))).astype(jnp.int32)
    sequences = None if visible.sequence_ids is None else visible.sequence_ids * mask
    return visible.replace(attention_mask=mask, sequence_ids=sequences)  # type: ignore[attr-defined,no-any-return]


class EntityHead(Head):
    """Predicts the vectors of entities from the vectors of their mentions' first tokens.

    Parameters: ``transform/{kernel, bias}``, ``layer_norm/{scale, bias}``.
    """

    reads: ClassVar[tuple[str, ...]] = ("entity_positions",)

    @nn.compact
    def __call__(self, outputs: Outputs, batch: Batch, rng: RowRng | None) -> dict[str, jax.Array]:
        """Return predicted_entities [B, M, E] at ``entity_positions`` [B, M]."""
        config: Any = self.config
        x = gather(outputs["sequence"], batch["entity_positions"])
        dense = Dense(config, (("embed", config.hidden_size),), ((None, config.entity_size),), name="transform")
        return {"predicted_entities": LayerNorm(config, name="layer_norm")(ACTIVATIONS[config.activation](dense(x)))}


_OF_BERT = (
    *("hidden_size", "num_layers", "num_heads", "mlp_dim", "max_length", "type_vocab_size"),
    *("activation", "layer_norm_eps", "initializer_range"),
)


def fitted(config: Config, other: ModelConfig) -> Config:
    """Return ``config`` with the sizes of the BERT ``other``, so that ``begun`` can take its parameters.

    Raises ``UserError`` if ``other`` is no BERT, or has no layer above the T-encoder of ``config``.
    """
    if type(other) is not bert.Config or other.causal:
        raise UserError(
            f"an encoder 'ernie_thu' begins as a BERT, and the model of --init is {other.encoder!r}"
            f"{' and reads from left to right' if other.causal else ''}; take another --init"
        )
    return dataclasses.replace(config, **{name: getattr(other, name) for name in _OF_BERT})


def begun(encoder: Mapping[str, Any], config: Config) -> tuple[dict[str, Any], str]:
    """Return the parameters that the unrolled parameters ``encoder`` of a BERT give, and what is fresh, in words."""
    del config
    return dict(encoder), "the parameters of entities are fresh"
