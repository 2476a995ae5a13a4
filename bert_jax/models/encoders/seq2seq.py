"""An encoder and a decoder that reads it, with shared embeddings: MASS (Song et al. 2019), BERT for generation.

The form is MASS's (microsoft/MASS, MASS-summarization, s2s_model.py): learned positions, a layer norm after the sum of
the embeddings, layers normalised after each residual sum. Here encoder and decoder share the embeddings of positions
and their norm too, so a token at a position is the same vector in both. With ``word_scale`` "one" and ``lm_head``
"bert" it is the model of Rothe et al. 2020 (arXiv 1907.12461, section 3), whose encoder, decoder or both begin as a
BERT.

Parameters (of unrolled layers; scanned layers are stacked under ``layers``, in both stacks)::

    embeddings/{word_embeddings, position_embeddings, layer_norm/{scale, bias}}
    layer_<i>/...                                                               of the encoder, as BERT's
    decoder/layer_<i>/...                                                       as BERT's, and
    decoder/layer_<i>/cross_attention/{query, key, value, output}/{kernel, bias}
    decoder/layer_<i>/cross_attention_layer_norm/{scale, bias}
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.errors import UserError
from bert_jax.models import heads
from bert_jax.models.attention import Source
from bert_jax.models.config import Block, ModelConfig, TransformerConfig
from bert_jax.models.dropout import RowRng, dropout
from bert_jax.models.encoders import bert
from bert_jax.models.encoders.bert import Pooler as Pooler
from bert_jax.models.encoders.bert import size_of
from bert_jax.models.encoding import Encoding
from bert_jax.models.gradients import look_up, spread
from bert_jax.models.masks import Queries, Visible
from bert_jax.models.placement import constrain
from bert_jax.models.primitives import activation_dtype
from bert_jax.models.transformer import READS, UNROLLED, add_layers, context_of, run_layers
from bert_jax.records import Batch


@dataclasses.dataclass(frozen=True)
class Config(TransformerConfig):
    """The settings of an encoder with a decoder. Defaults are MASS-base (section 4.1): 6 layers each, 768 wide.

    Attributes:
      word_scale: what embeddings of words are multiplied by before positions are added: "one", or the "root" of
        ``hidden_size``, as MASS does. Initial weights are small (0.02), and without it a word begins with no more
        weight than its position; a BERT has learned without it, so a model that begins as a BERT has "one".
      init_parts: what begins as the BERT of --init: the "encoder", the "decoder" (without its cross-attention, which a
        BERT lacks), or "both". The embeddings, which both share, are the BERT's in each case.
      lm_head: what predicts tokens from the decoder's vectors: "tied" a product with the word embeddings alone, as MASS
        has, "bert" the head of a BERT, with a dense layer and a bias.
    """

    num_layers: int = 6  # layers of the encoder
    _: dataclasses.KW_ONLY
    num_decoder_layers: int = 6  # layers of the decoder
    word_scale: Literal["one", "root"] = "root"
    lm_head: Literal["tied", "bert"] = "tied"
    init_parts: Literal["both", "encoder", "decoder"] = "both"
    layer_norm_eps: float = 1e-5  # as published

    @property
    def decodes(self) -> bool:
        return True

    @property
    def num_kept_layers(self) -> int:
        return self.num_decoder_layers

    @property
    def decoder_blocks(self) -> tuple[Block, ...]:
        """The form of each layer of the decoder."""
        return (Block(cross=True),) * self.num_decoder_layers

    @property
    def num_parameters(self) -> int:
        return super().num_parameters + sum(map(self._weights, self.decoder_blocks))

    def products(self, length: int, decoded: int = 0) -> int:
        """Return the multiply-adds of a row whose encoder reads ``length`` positions and whose decoder ``decoded``."""
        encoder, d = super().products(length), self.hidden_size
        if not decoded:
            return encoder
        of_source = 2 * d * d  # keys and values that cross-attention makes of a position of the source
        decoder = sum(
            decoded * (self._weights(block) - of_source + 2 * d * (decoded + length)) + length * of_source
            for block in self.decoder_blocks
        )
        return encoder + decoder

    def train_flops(self, length: int, num_masked: int = 0, num_pooled: int = 0) -> float:
        """Return the FLOPs of a row; the decoder reads the ``num_masked`` positions (``ModelConfig.train_flops``)."""
        decoder = self.products(length, num_masked) - self.products(length)
        transform = num_masked * self.hidden_size**2 if self.lm_head == "tied" else 0  # which that head does not have
        return super().train_flops(length, num_masked, num_pooled) + 6.0 * (decoder - transform)


class _Embeddings(bert.Embeddings):
    """Sums scaled word embeddings and position embeddings, then applies layer norm and dropout."""

    config: Config

    def __call__(self, batch: Batch, rng: RowRng | None) -> jax.Array:
        """Return embeddings [B, L, D] for ``input_ids`` [B, L]. Without ``position_ids``, positions count from 0."""
        config, positions = self.config, batch.get("position_ids")
        length, dtype = batch["input_ids"].shape[1], activation_dtype(self.config)
        if positions is None and length > config.max_length:
            raise UserError(f"rows of {length} positions exceed the model's {config.max_length}; shorten them")
        words = look_up(self.word_embeddings, batch["input_ids"], dtype)
        if config.word_scale == "root":
            words = words * jnp.asarray(math.sqrt(config.hidden_size), dtype)
        if positions is None:
            places = spread(self.position_embeddings[:length], words.shape, dtype)
        else:
            places = look_up(self.position_embeddings, positions, dtype)
        x = dropout(self.layer_norm(words + places), config.dropout_rate, rng, "embeddings")
        return constrain(x, "batch", "length", "embed")


class _Decoder(nn.Module):
    """The layers of the decoder, each with a third sub-layer that reads the encoder's vectors."""

    config: Config

    def setup(self) -> None:
        add_layers(self, self.config, self.config.decoder_blocks)

    def __call__(
        self, x: jax.Array, batch: Batch, source: Source, rng: RowRng | None
    ) -> tuple[jax.Array, Callable[[], jax.Array]]:
        """Return what ``run_layers`` returns for x [B, T, D] and the ``batch`` of the decoder, read left to right."""
        context = context_of(self.config, batch, self.config.decoder_blocks)._replace(source=source)
        if "memory_slot" not in batch:  # else the slots say the order
            context = context._replace(visible=context.visible.replace(causal=True))  # type: ignore[attr-defined]
        return run_layers(self, x, context, rng, self.config.decoder_blocks)


_GENERATION = ("memory_ids", "memory_positions", "memory_slot")  # of the decoder's tokens (``context_of``)


class Encoder(nn.Module):
    """Encodes a source and decodes a target from it; a batch without a target has the encoder's vectors.

    Features of a batch, besides BERT's of the source:
      decoder_input_ids: [B, T] what the decoder reads, each token with all before it.
      decoder_position_ids: [B, T] its positions; if absent, they count from 0.
      decoder_sequence_ids: [B, T] 0 padding; the packed target n reads the source whose ``sequence_ids`` are n, or the
        whole source if the rows have no ``sequence_ids``, and n is 1. If absent, all tokens are of target 1.
      source_ids: [B, L] what the decoder may read of the source, as in ``sequence_ids``; 0 hides a token from the
        decoder alone. If absent, it reads what the encoder reads.
      memory_ids, memory_positions, memory_slot: of the decoder's tokens, in generation (``transformer.context_of``).
        With ``memory_slot``, the encoder does not run: the decoder reads the keys and values that it has kept of the
        source, whose ``attention_mask`` and other features still say what is visible.
    """

    config: Config
    reads: ClassVar[frozenset[str]] = READS | {
        "position_ids",
        "source_ids",
        "decoder_input_ids",
        "decoder_position_ids",
        "decoder_sequence_ids",
    }

    def setup(self) -> None:
        self.embeddings = _Embeddings(self.config)
        add_layers(self, self.config)
        self.decoder = _Decoder(self.config)

    def __call__(
        self, batch: Batch, rng: RowRng | None = None, hidden_states: Literal["last", "all"] = "last"
    ) -> Encoding:
        """Return the vectors of the decoder, [B, T, D]; of the encoder, [B, L, D], if nothing is to decode.

        If ``rng`` is None, there is no dropout. "all" hidden states are of the same stack.
        """
        if "decoder_input_ids" not in batch:
            x, stacked = self._encode(batch, rng)
        else:
            vectors = None if "memory_slot" in batch else self._encode(batch, rng)[0]
            own, rng = _of_decoder(batch), rng and rng.site("decoder")
            source = Source(vectors, _visible_source(batch, own))
            x, stacked = self.decoder(self.embeddings(own, rng), own, source, rng)
        hidden = stacked() if hidden_states == "all" else None
        return Encoding(x, self.embeddings.word_embeddings, hidden)

    def _encode(self, batch: Batch, rng: RowRng | None) -> tuple[jax.Array, Callable[[], jax.Array]]:
        source = {name: x for name, x in batch.items() if name not in _GENERATION}
        return run_layers(self, self.embeddings(source, rng), context_of(self.config, source), rng)


def _of_decoder(batch: Batch) -> Batch:
    """Return what the decoder reads of ``batch``, under the names that layers read."""
    tokens, ids = batch["decoder_input_ids"], batch.get("decoder_sequence_ids")
    mask = jnp.ones_like(tokens) if ids is None else (ids > 0).astype(jnp.int32)
    places = batch.get("decoder_position_ids")
    if places is None:
        places = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32)[None], tokens.shape)
    own = {"input_ids": tokens, "attention_mask": mask, "position_ids": places}
    own |= {} if ids is None else {"sequence_ids": ids}
    return own | {name: batch[name] for name in _GENERATION if name in batch}


def _visible_source(batch: Batch, own: Batch) -> Visible:
    """Return which tokens of the source each token of the decoder's batch ``own`` sees."""
    keys = batch.get("source_ids", batch.get("sequence_ids", batch["attention_mask"]))
    ids = own.get("sequence_ids", own["attention_mask"])
    return Visible(keys > 0, keys, queries=Queries(ids.astype(jnp.int32), own["position_ids"]))


class LmHead(heads.LmHead):
    """Predicts tokens: the head of a BERT, or a product with the word embeddings alone (``Config.lm_head``).

    The second has no parameters.
    """

    def __call__(self, outputs: heads.Outputs, batch: Batch, rng: RowRng | None) -> dict[str, jax.Array]:
        """Return ``logits`` [B, P, V] float32 (or wider) for the vectors at ``masked_positions`` [B, P]."""
        if self.config.lm_head == "bert":  # type: ignore[attr-defined]
            return super().__call__(outputs, batch, rng)
        logits = heads.decode(self.config, self.vectors(outputs, batch), outputs["word_embeddings"])
        return {self.logits: constrain(logits, "batch", None, "vocab")}


def fitted(config: Config, other: ModelConfig) -> Config:
    """Return ``config`` with the sizes of the BERT ``other``, so that ``begun`` can take its parameters.

    A stack that ``init_parts`` does not name keeps its number of layers. Raises ``UserError`` if ``other`` is no BERT.
    """
    if not isinstance(other, bert.Config) or other.causal or other.embedding_projection or other.shares_layers:
        raise UserError(
            f"an encoder with a decoder begins as a BERT or a RoBERTa, and the model of --init is {other.encoder!r}"
            f"{' and reads from left to right' if other.causal else ''}; take another --init"
        )
    parts, names = config.init_parts, ("hidden_size", "num_heads", "mlp_dim", "max_length", "activation")
    return dataclasses.replace(
        config,
        **{name: getattr(other, name) for name in (*names, "layer_norm_eps", "initializer_range")},
        num_layers=config.num_layers if parts == "decoder" else other.num_layers,
        num_decoder_layers=config.num_decoder_layers if parts == "encoder" else other.num_layers,
        word_scale="one",
        lm_head="bert",
    )


def begun(encoder: Mapping[str, Any], config: Config) -> tuple[dict[str, Any], str]:
    """Return the parameters that the unrolled parameters ``encoder`` of a BERT give, and what is fresh, in words.

    The BERT's embeddings of the first token type, and of task 0 (``encoders.ernie``), are added to its positions: a
    decoder knows neither segments nor tasks.
    """
    tables = dict(encoder["embeddings"])
    for name in ("token_type_embeddings", "task_type_embeddings"):
        if (types := tables.pop(name, None)) is not None:
            tables["position_embeddings"] = tables["position_embeddings"] + types[0]
    layers = {name: tree for name, tree in encoder.items() if name.startswith(UNROLLED)}
    taken: dict[str, Any] = {"embeddings": tables}
    taken |= {} if config.init_parts == "decoder" else layers
    taken |= {} if config.init_parts == "encoder" else {"decoder": layers}
    fresh = {
        "both": "the cross-attention of the decoder is fresh",
        "encoder": "the decoder is fresh, but for the shared embeddings",
        "decoder": "the encoder, but for the shared embeddings, and the cross-attention of the decoder are fresh",
    }
    return taken, fresh[config.init_parts]


# "base" and "middle" are the released models (microsoft/MASS, MASS-summarization, README.md).
SIZES: dict[str, dict[str, int]] = {
    "base": size_of(6, 768, 12, num_decoder_layers=6),
    "middle": size_of(6, 1024, 16, num_decoder_layers=6),
    "tiny": size_of(2, 128, 2, num_decoder_layers=2),
    "mini": size_of(4, 256, 4, num_decoder_layers=4),
    "small": size_of(4, 512, 8, num_decoder_layers=4),
}
