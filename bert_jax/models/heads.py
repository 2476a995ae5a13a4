"""Heads: the parts of a model above its encoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.errors import UserError
from bert_jax.models.config import ModelConfig
from bert_jax.models.dropout import RowRng, dropout
from bert_jax.models.gradients import gather, look_up
from bert_jax.models.placement import constrain
from bert_jax.models.primitives import ACTIVATIONS, Dense, LayerNorm, activation_dtype, normal, with_axes
from bert_jax.models.products import rounded_product, wide_product
from bert_jax.records import Batch

Outputs = Mapping[str, jax.Array]
# The names of sentence-transformers for the ways to make one vector from the vectors of a text's tokens; see ``pool``.
Pooling = Literal["mean", "cls", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
DEFAULT_POOLING: Pooling = "mean"  # in features and in sentence vectors, if neither the model nor the user says another
POSITION_SIZE = 200  # the width of the embedding of a position within a span


class Head(nn.Module):
    """A part of a model above the encoder: it reads outputs of the parts before it, by name, and adds outputs.

    The first outputs are the encoder's: ``sequence`` [B, L, D], ``word_embeddings`` [V, E], and ``hidden`` [N + 1, B,
    L, D] if any head has ``reads_hidden``. If ``rng`` is None, there is no dropout.
    """

    config: ModelConfig
    reads: ClassVar[tuple[str, ...]] = ()  # features of a batch that the head reads besides the features of the encoder
    reads_hidden: ClassVar[bool] = False
    begins_as: ClassVar[str] = ""  # the part of an initial model with whose parameters it begins if it has no such head

    def __call__(self, outputs: Outputs, batch: Batch, rng: RowRng | None) -> dict[str, jax.Array]:
        """Return the outputs that the head adds, by name."""
        raise UserError(f"the head {type(self).__name__} has no method __call__, which returns the outputs it adds")


class Pooler(Head):
    """Applies a dense layer and ``activation`` to the vectors that represent whole sequences."""

    reads: ClassVar[tuple[str, ...]] = ("cls_positions",)

    @nn.compact
    def __call__(self, outputs: Outputs, batch: Batch, rng: RowRng | None) -> dict[str, jax.Array]:
        """Return pooled [B, K, D] at ``cls_positions`` [B, K].

        A batch without ``cls_positions`` has one sequence per row; then pooled is [B, D].
        """
        config, size = self.config, self.config.hidden_size
        positions = batch.get("cls_positions")
        if positions is None:
            x = gather(outputs["sequence"], summary_positions(config, batch["attention_mask"]))[:, 0]
        else:
            x = gather(outputs["sequence"], positions)
        x = Dense(config, (("embed", size),), ((None, size),), config.param_dtype, name="dense")(x)
        return {"pooled": self.activation(x).astype(activation_dtype(config))}

    @staticmethod
    def activation(x: jax.Array) -> jax.Array:
        """Return the activation function of x."""
        return jnp.tanh(x)


def summary_positions(config: ModelConfig, attention_mask: jax.Array) -> jax.Array:
    """Return the position [B, 1] of the vector that represents a whole sequence, from attention_mask [B, L].

    It is position 0, where ``[CLS]`` is, or the last real position, as ``config.summary`` says.
    """
    if config.summary == "last":
        length = attention_mask.shape[1]
        return jnp.max(jnp.where(attention_mask > 0, jnp.arange(length)[None, :], 0), axis=1, keepdims=True)
    return jnp.zeros((attention_mask.shape[0], 1), jnp.int32)


class LmHead(Head):
    """Predicts tokens: a dense layer, activation and layer norm, then a product with the word embeddings and a bias.

    Parameters: ``transform/{kernel, bias}``, ``layer_norm/{scale, bias}``, ``output_bias``.
    """

    logits: str = "mlm_logits"
    reads: ClassVar[tuple[str, ...]] = ("masked_positions",)

    @nn.compact
    def __call__(self, outputs: Outputs, batch: Batch, rng: RowRng | None) -> dict[str, jax.Array]:
        """Return ``logits`` [B, P, V] float32 (or wider) for the vectors that ``vectors`` returns."""
        config, embed = self.config, (("embed", self.config.hidden_size),)
        x = self.vectors(outputs, batch)
        dense = Dense(config, embed, ((None, config.embedding_size),), bias=config.biases, name="transform")
        x = ACTIVATIONS[config.activation](dense(x))
        x = LayerNorm(config, name="layer_norm")(x)
        logits = decode(config, x, outputs["word_embeddings"])
        zeros = with_axes(nn.initializers.zeros, "vocab")
        logits += self.param("output_bias", zeros, (config.vocab_size,), config.param_dtype)[None, None, :]
        return {self.logits: constrain(logits, "batch", None, "vocab")}

    def vectors(self, outputs: Outputs, batch: Batch) -> jax.Array:
        """Return the vectors [B, P, D] from which tokens are predicted, at ``masked_positions`` [B, P]."""
        return gather(outputs["sequence"], batch["masked_positions"])


def decode(config: ModelConfig, x: jax.Array, table: jax.Array) -> jax.Array:
    """Return x [B, P, E] times the word embeddings ``table`` [V, E], without a bias: [B, P, V] float32 or wider."""
    if activation_dtype(config) != config.compute_dtype:
        rows = x.reshape(-1, x.shape[-1])
        return rounded_product(rows, table, config.compute_dtype, True).reshape(*x.shape[:-1], -1)
    return wide_product(x, table.astype(config.compute_dtype), config.param_dtype, "...d,vd->...v")


class BoundaryHead(LmHead):
    """Predicts a token from the two vectors beside its span and its index in the span, but not from its own vector.

    Joshi et al. 2020, section 3.2: a dense layer with activation and layer norm comes before the layers of ``LmHead``.
    Additional parameters: ``position_embeddings`` [positions, 200], ``input/{kernel, bias}``,
    ``input_layer_norm/{scale, bias}``.

    Attributes:
      positions: the number of places in a span that have their own embedding; later places share the last embedding.
    """

    logits: str = "boundary_logits"
    positions: int = 20
    reads: ClassVar[tuple[str, ...]] = ("span_left", "span_right", "span_offsets")

    def vectors(self, outputs: Outputs, batch: Batch) -> jax.Array:
        """Return vectors [B, P, D] made of the vectors at ``span_left`` and ``span_right`` and of ``span_offsets``.

        All three features are [B, P].
        """
        config, size = self.config, self.config.hidden_size
        shape = (self.positions, POSITION_SIZE)
        table = self.param("position_embeddings", with_axes(normal(config), None, None), shape, config.param_dtype)
        place = look_up(table, jnp.minimum(batch["span_offsets"], self.positions - 1), activation_dtype(config))
        sides = [gather(outputs["sequence"], batch[name]) for name in ("span_left", "span_right")]
        x = jnp.concatenate([*sides, place], axis=-1)
        x = Dense(config, ((None, 2 * size + POSITION_SIZE),), (("embed", size),), name="input")(x)
        return LayerNorm(config, name="input_layer_norm")(ACTIVATIONS[config.activation](x))


class Classifier(Head):
    """Applies dropout and a dense layer (W in R^{K x D} and a bias) to the output named ``vectors``; adds ``logits``.

    On "pooled" vectors it predicts the label of a text, or a number if ``num_outputs`` is 1; on "sequence" it predicts
    a label or number for each token. Parameters: ``dense/{kernel, bias}``.
    """

    num_outputs: int = 1
    dropout_rate: float = 0.0
    vectors: str = "pooled"
    logits: str = "logits"

    @nn.compact
    def __call__(self, outputs: Outputs, batch: Batch, rng: RowRng | None) -> dict[str, jax.Array]:
        """Return logits [B, ..., K] float32 of vectors [B, ..., D]."""
        x = dropout(outputs[self.vectors], self.dropout_rate, rng, "classifier")
        config, embed = self.config, (("embed", x.shape[-1]),)
        scale = config.classifier_scale
        dense = Dense(config, embed, ((None, self.num_outputs),), config.param_dtype, scale=scale, name="dense")
        return {self.logits: dense(x)}


class ReplacedTokenHead(Head):
    """Scores whether each token was put in the place of another token (Clark et al. 2020, section 3.1).

    A dense layer and the activation come before the last layer. Parameters: ``transform/{kernel, bias}``,
    ``dense/{kernel, bias}``.
    """

    @nn.compact
    def __call__(self, outputs: Outputs, batch: Batch, rng: RowRng | None) -> dict[str, jax.Array]:
        """Return replaced_logits [B, L] float32 or wider; above 0 means replaced."""
        config, size = self.config, self.config.hidden_size
        x = Dense(config, (("embed", size),), ((None, size),), name="transform")(outputs["sequence"])
        x = ACTIVATIONS[config.activation](x)
        logits = Dense(config, (("embed", size),), ((None, 1),), config.param_dtype, name="dense")(x)
        return {"replaced_logits": logits[..., 0]}


class SpanClassifier(Classifier):
    """Scores each token as the first and as the last token of an answer."""

    num_outputs: int = 2
    vectors: str = "sequence"

    def __call__(self, outputs: Outputs, batch: Batch, rng: RowRng | None) -> dict[str, jax.Array]:
        """Return start_logits and end_logits [B, L]."""
        logits = super().__call__(outputs, batch, rng)[self.logits]
        return {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}


class ChoiceClassifier(Classifier):
    """Scores every choice: multiplies the pooled output of (context, choice) by one vector that all choices share."""

    num_outputs: int = 1

    def __call__(self, outputs: Outputs, batch: Batch, rng: RowRng | None) -> dict[str, jax.Array]:
        """Return logits [B], which ``Model`` reshapes to [rows, C]."""
        return {self.logits: super().__call__(outputs, batch, rng)[self.logits][..., 0]}


class SentenceVector(Head):
    """Makes one vector for each text, without parameters (Reimers and Gurevych 2019, section 3); see ``pool``."""

    pooling: Pooling = DEFAULT_POOLING

    def __call__(self, outputs: Outputs, batch: Batch, rng: RowRng | None) -> dict[str, jax.Array]:
        """Return embeddings [B, D], float32 or wider. They are not normalised."""
        return {"embeddings": pool(outputs["sequence"], batch["attention_mask"], self.pooling)}


def pool(sequence: jax.Array, attention_mask: jax.Array, pooling: Pooling) -> jax.Array:
    """Return one vector for each text, [B, D] float32 or wider, from sequence [B, L, D] and attention_mask [B, L].

    The mask says which tokens count, ``[CLS]`` and ``[SEP]`` included. "mean" is the mean of their vectors, "max" the
    largest value of each dimension, "cls" the first vector, without the pooler, and "lasttoken" the last vector. In
    "mean_sqrt_len_tokens" the sum is divided by the root of the number of tokens; in "weightedmean" the token at
    position i, counted from 1, has the weight i.
    """
    sequence = sequence.astype(jnp.promote_types(sequence.dtype, jnp.float32))
    weights = attention_mask.astype(sequence.dtype)
    if pooling in ("cls", "lasttoken"):
        length = weights.shape[1]
        place = jnp.argmax(weights, 1) if pooling == "cls" else length - 1 - jnp.argmax(weights[:, ::-1], 1)
        return gather(sequence, place[:, None])[:, 0]
    if pooling == "max":
        return jnp.max(jnp.where(weights[..., None] > 0, sequence, -jnp.inf), axis=1)
    if pooling == "weightedmean":
        weights *= jnp.arange(1, weights.shape[1] + 1, dtype=weights.dtype)[None]
    count = jnp.maximum(jnp.sum(weights, axis=1), 1.0)[:, None]
    total = jnp.einsum("bld,bl->bd", sequence, weights)
    return total / (jnp.sqrt(count) if pooling == "mean_sqrt_len_tokens" else count)


# What ``feature_tagging`` may choose; ``features.extract.LAYERS`` has what ``bert-jax features`` writes.
Layers = Literal[
    "embeddings",
    "second_to_last",
    "last",
    "weighted_sum_last_four",
    "concat_last_four",
    "weighted_sum_all",
    "weighted_sum_with_embeddings",
]
# The least number of layers that the model must have; 0 for all other combinations.
_OF_FOUR = ("sum_last_four", "weighted_sum_last_four", "concat_last_four")
NEEDED = {"second_to_last": 1, "weighted_sum_all": 1, **dict.fromkeys(_OF_FOUR, 4)}


def combine(layers: str, hidden: jax.Array) -> jax.Array:
    """Return a combination of ``hidden`` [N + 1, ..., D], the embeddings first: [..., D], or [..., 4D] of "concat"."""
    if layers == "concat_last_four":
        return jnp.concatenate(list(hidden[-4:]), axis=-1)
    if layers == "sum_last_four":
        return jnp.sum(hidden[-4:], axis=0)
    return hidden[{"embeddings": 0, "second_to_last": -2, "last": -1}[layers]]


def _weighted(layers: str, count: int) -> int:
    """Return how many of ``count`` hidden states, from the last one, a weighted sum has; 0 if it is none."""
    every = {"weighted_sum_all": count - 1, "weighted_sum_with_embeddings": count, "weighted_sum_last_four": 4}
    return every.get(layers, 0)


class LayerMix(Head):
    """Replaces the vectors of the last layer by a combination of several layers (Devlin et al. 2019, table 7).

    A weighted sum is scale * sum of softmax(weights)_i h_i (Peters et al. 2018, equation 1); it is initially the mean.
    ELMo is "weighted_sum_with_embeddings", of all layers and the embeddings. Parameters: ``weights`` and ``scale`` of a
    weighted sum. The other combinations have no parameters.
    """

    layers: Layers = "concat_last_four"
    dropout_rate: float = 0.0
    reads_hidden: ClassVar[bool] = True

    @nn.compact
    def __call__(self, outputs: Outputs, batch: Batch, rng: RowRng | None) -> dict[str, jax.Array]:
        """Return sequence [B, L, D] in float32 or wider.

        If layers are concatenated it is [B, L, 4D], the lowest layer first.
        """
        hidden = outputs["hidden"].astype(self.config.param_dtype)
        if count := _weighted(self.layers, len(hidden)):
            weights = self.param("weights", with_axes(nn.initializers.zeros, None), (count,), hidden.dtype)
            scale = self.param("scale", nn.initializers.ones, (), hidden.dtype)
            x = scale * jnp.tensordot(jax.nn.softmax(weights), hidden[-count:], axes=1)
        else:
            x = combine(self.layers, hidden)
        return {"sequence": dropout(x, self.dropout_rate, rng, "features")}


class HiddenStates(Head):
    """Gives the hidden states of some layers, through one projection that they share if ``width`` is not 0.

    Attributes:
      states: the numbers of these layers; 0 stands for the embeddings.
    """

    states: tuple[int, ...] = ()
    width: int = 0
    reads_hidden: ClassVar[bool] = True

    @nn.compact
    def __call__(self, outputs: Outputs, batch: Batch, rng: RowRng | None) -> dict[str, jax.Array]:
        """Return states [B, S, L, D], or [B, S, L, ``width``]."""
        config, hidden = self.config, outputs["hidden"]
        x = jnp.stack([hidden[number] for number in self.states], axis=1)
        if self.width:
            inputs, width = (("embed", x.shape[-1]),), ((None, self.width),)
            x = Dense(config, inputs, width, config.param_dtype, name="dense")(x)
        return {"states": x}
