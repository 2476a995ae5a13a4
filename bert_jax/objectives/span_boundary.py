"""Masked language modelling and the span-boundary objective (Joshi et al. 2020, "SpanBERT", sections 3.2 and 3.3).

A masked token is predicted twice: from its own vector, and from its index in the span together with the encoder's
vectors at the two tokens beside the span. So these two vectors learn to represent the span. Any run of predicted tokens
counts as a span, so every ``masking.strategy`` works; the paper uses "spans".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import jax.numpy as jnp

from bert_jax.configuration import LossWeight, check_fields
from bert_jax.models.heads import POSITION_SIZE, BoundaryHead
from bert_jax.models.model import LM_HEAD, Part
from bert_jax.objectives import base
from bert_jax.objectives.base import MLM, Setting, Term, prediction
from bert_jax.records import Batch, BatchSpec


@dataclasses.dataclass(frozen=True)
class Config(base.Config):
    """The keys of ``config.objective``, besides its name.

    Attributes:
      boundary_weight: the weight of the second prediction in the loss. If 0, its loss is measured but does not train
        the model.
      boundary_positions: how many tokens of a span, counted from its first, are predicted the second way.
    """

    boundary_weight: LossWeight = 1.0
    boundary_positions: int = 20
    where: dataclasses.InitVar[str] = "config.objective"

    def __post_init__(self, where: str) -> None:
        check_fields(self, where, "1 to 1000 is allowed", "boundary_positions", sound=lambda n: 1 <= n <= 1000)


class Objective(base.PretrainingObjective):
    """Predicts masked tokens from their own vectors and from the boundaries of their spans.

    The loss is the mean over masked positions plus the weighted mean over the masked positions whose span has
    boundaries, each over the whole global batch. A span beside a special token has no boundaries.
    """

    arrangement = "sentences"
    derived = ("boundary_weights",)
    titles: ClassVar[Mapping[str, str]] = {
        "boundary_loss": "Span-boundary loss, nats",
        "boundary_accuracy": "Span-boundary accuracy",
    }

    def __init__(self, config: Config, setting: Setting):
        self._positions = config.boundary_positions
        self.parts = (LM_HEAD, Part.of("boundary_head", BoundaryHead, positions=self._positions))
        super().__init__(config, setting)

    def terms(self, config: Config) -> dict[str, Term]:
        boundary = prediction("boundary_logits", "masked_labels", "boundary_weights", config.boundary_weight, "none")
        return {"mlm": MLM, "boundary": boundary}

    def inputs(self, batch: Batch) -> Batch:
        """Return ``batch`` with the weights [B, P] of the second prediction: 0 where a target has no boundaries."""
        counts = (batch["span_right"] > batch["span_left"]) & (batch["span_offsets"] < self._positions)
        return {**batch, "boundary_weights": batch["masked_weights"] * counts.astype(jnp.float32)}

    def flops(self, spec: BatchSpec) -> float:
        model = self.setting.model
        size, decoded = model.hidden_size, model.embedding_size * (model.hidden_size + model.vocab_size)
        head = (2 * size + POSITION_SIZE) * size + decoded
        return super().flops(spec) + 6.0 * spec["masked_positions"].shape[0] * head
