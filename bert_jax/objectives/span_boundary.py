"""Masked language modelling and the span-boundary objective (Joshi et al. 2020, "SpanBERT", sections 3.2 and 3.3).

A masked token is also predicted from the encoder's vectors at the two tokens beside its span and from its place in the
span alone, so these vectors learn to stand for the span. It goes with ``masking.strategy`` "spans", and with any other:
a span is a run of predicted tokens.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.configuration import check_fields
from bert_jax.models.dropout import RowRng
from bert_jax.models.heads import Head, Outputs
from bert_jax.models.model import LM_HEAD, Part
from bert_jax.models.primitives import ACTIVATIONS, Dense, LayerNorm, constrain, gather, named, normal
from bert_jax.objectives import base
from bert_jax.objectives.base import MLM, Setting, Term
from bert_jax.records import Batch, BatchSpec

_POSITION_SIZE = 200  # of the vectors of places in a span


@dataclasses.dataclass(frozen=True)
class Config(base.Config):
    """Keys of ``config.objective``, beside its name.

    Attributes:
      boundary_weight: of the second term. 0: it is measured, and nothing is learned from it.
      boundary_positions: of a span, from its first one, that are predicted from its sides.
    """

    boundary_weight: float = 1.0
    boundary_positions: int = 20

    def __post_init__(self) -> None:
        where = "config.objective"
        check_fields(self, where, "at least 0 is needed", "boundary_weight", sound=lambda value: value >= 0)
        check_fields(self, where, "1 to 1000 is allowed", "boundary_positions", sound=lambda n: 1 <= n <= 1000)


class BoundaryHead(Head):
    """Two dense layers, each with activation and layer norm; the word embeddings decode, with a bias of their own.

    Parameters: ``position_embeddings`` [positions, 200], ``input`` and ``output`` {kernel, bias}, ``input_layer_norm``
    and ``output_layer_norm`` {scale, bias}, ``output_bias`` [V].
    """

    positions: int = 20
    reads: ClassVar[tuple[str, ...]] = ("span_left", "span_right", "span_offsets")

    @nn.compact
    def __call__(self, outputs: Outputs, batch: Batch, rng: RowRng | None) -> dict[str, jax.Array]:
        """Return boundary_logits [B, P, V] float32 from the vectors at ``span_left`` and ``span_right`` [B, P]."""
        config, size = self.config, self.config.hidden_size
        shape = (self.positions, _POSITION_SIZE)
        table = self.param("position_embeddings", named(normal(config), None, None), shape, config.param_dtype)
        place = jnp.take(table, jnp.minimum(batch["span_offsets"], self.positions - 1), axis=0)
        sides = [gather(outputs["sequence"], batch[name]) for name in ("span_left", "span_right")]
        x = jnp.concatenate([*sides, place.astype(config.compute_dtype)], axis=-1)
        activation, embed = ACTIVATIONS[config.activation], (("embed", size),)
        x = activation(Dense(config, ((None, 2 * size + _POSITION_SIZE),), embed, name="input")(x))
        x = LayerNorm(config, name="input_layer_norm")(x)
        x = activation(Dense(config, embed, ((None, config.embedding_size),), name="output")(x))
        x = LayerNorm(config, name="output_layer_norm")(x)
        words = outputs["word_embeddings"].astype(config.compute_dtype)
        logits = jnp.einsum("...d,vd->...v", x, words, preferred_element_type=config.param_dtype)
        zeros = named(nn.initializers.zeros, "vocab")
        logits += self.param("output_bias", zeros, (config.vocab_size,), config.param_dtype)[None, None, :]
        return {"boundary_logits": constrain(logits, "batch", None, "vocab")}


class Objective(base.PretrainingObjective):
    """The loss is the mean over masked positions plus the mean over those with boundaries, of the whole global batch.

    A span beside a special token has no boundaries there.
    """

    arrangement = "sentences"
    derived = ("boundary_weights",)

    def __init__(self, config: Config, setting: Setting):
        self._positions = config.boundary_positions
        self.parts = (LM_HEAD, Part.of("boundary_head", BoundaryHead, positions=self._positions))
        super().__init__(config, setting)

    def terms(self, config: Config) -> dict[str, Term]:
        boundary = Term("boundary_logits", "masked_labels", "boundary_weights", config.boundary_weight, "none")
        return {"mlm": MLM, "boundary": boundary}

    def inputs(self, batch: Batch) -> Batch:
        """Return ``batch`` with the weights [B, P] of the second term: 0 where a target has no boundaries."""
        counts = (batch["span_right"] > batch["span_left"]) & (batch["span_offsets"] < self._positions)
        return {**batch, "boundary_weights": batch["masked_weights"] * counts.astype(jnp.float32)}

    def flops(self, spec: BatchSpec) -> float:
        model = self.setting.model
        size, decoded = model.hidden_size, model.embedding_size * (model.hidden_size + model.vocab_size)
        head = (2 * size + _POSITION_SIZE) * size + decoded
        return super().flops(spec) + 6.0 * spec["masked_positions"].shape[0] * head
