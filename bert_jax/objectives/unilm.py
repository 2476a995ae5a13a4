"""UniLM: masked tokens predicted from both sides, from one side, or from a source (Dong et al. 2019, section 2.3).

The rows are ``[CLS] A [SEP] B [SEP]``, masked as BERT's. The direction says which tokens a token sees, by one number a
position (``Visible.order_ids``; left to right is ``Visible.causal``), and a token reads from its token type which
direction this is, as published (microsoft/unilm, unilm-v1):

=====================  ==================================================  ====================
direction              a token sees                                        token types of A, B
=====================  ==================================================  ====================
both sides             its whole sequence                                  0, 1
left to right          itself and what comes before                        2, 2
right to left          itself and what comes after                         3, 3
sequence to sequence   A; a token of B also itself and B before it         4, 5
=====================  ==================================================  ====================

A holds ``[CLS]`` and its ``[SEP]``. A run has the directions as members of a phase (``configs/pretrain/unilm.py``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Literal

import jax.numpy as jnp
import numpy as np

from bert_jax.errors import UserError
from bert_jax.generation.steppers import MASK_AT_END
from bert_jax.models.config import ModelConfig
from bert_jax.models.model import LM_HEAD, encoder_file
from bert_jax.objectives import base, mlm_nsp
from bert_jax.objectives.base import MLM, Setting, Term, prediction
from bert_jax.records import Batch
from bert_jax.rows.ngram_models import HIDDEN, Cloze

TOKEN_TYPES = 6
_SEGMENTS = 3  # [CLS] and two [SEP]: the special tokens of a row with a second segment
Direction = Literal["both sides", "sequence to sequence", "left to right", "right to left"]


@dataclasses.dataclass(frozen=True)
class Config(base.Config):
    """The keys of ``config.objective``, besides its name."""

    direction: Direction = "sequence to sequence"  # which tokens a token sees


class Objective(base.PretrainingObjective):
    """Predicts masked tokens from what the direction shows.

    The loss is the mean over masked positions of the whole global batch; with the direction "both sides" the
    next-sentence loss of BERT is added, as published.
    """

    config: Config
    titles: ClassVar[Mapping[str, str]] = mlm_nsp.Objective.titles

    def __init__(self, config: Config, setting: Setting):
        """Check that the encoder and the arrangement have what the direction needs; see the base class."""
        _check_token_types(setting.model, config.direction)
        both = config.direction == "both sides"
        self.parts = mlm_nsp.Objective.parts if both else (LM_HEAD,)
        forward, alone = config.direction == "left to right", setting.teacher is None  # a teacher reads by order_ids
        self._causal = forward and alone and setting.model.reading("what came before") is not None
        self.derived = () if both else ("token_type_ids",) if self._causal else ("order_ids", "token_type_ids")
        self.writes = MASK_AT_END if config.direction == "sequence to sequence" else ""
        super().__init__(config, setting)
        for rows in self._rows.values():
            if config.direction == "sequence to sequence" and rows.arranger.special_tokens < _SEGMENTS:
                raise UserError(
                    f"objective {self.name!r} needs a second segment for the direction {config.direction!r}, which the "
                    f"arrangement {rows.arrangement!r} does not have; config.objective.arrangement may be "
                    "sentence_pairs"
                )

    def terms(self, config: Config) -> dict[str, Term]:
        following = prediction("nsp_logits", "next_sentence_labels", "next_sentence_weights")
        return {"mlm": MLM} | ({"nsp": following} if config.direction == "both sides" else {})

    def network(self, model: ModelConfig) -> ModelConfig:
        """Return ``model``, or from left to right the same model with causal attention, which kernels compute."""
        return (model.reading("what came before") or model) if self._causal else model

    def inputs(self, batch: Batch) -> Batch:
        """Return ``batch`` with the token types [B, L] of the direction and, unless attention is causal, ``order_ids``.

        Numbers of packed sequences are compared within a sequence alone, so they may count through the row.
        """
        if self.config.direction == "both sides":
            return batch
        types, mask = batch["token_type_ids"], batch["attention_mask"]
        places = jnp.broadcast_to(jnp.arange(types.shape[1], dtype=jnp.int32)[None], types.shape)
        order, kinds = {
            "left to right": (places, jnp.full_like(types, 2)),
            "right to left": (-places, jnp.full_like(types, 3)),
            "sequence to sequence": (jnp.where(types > 0, places + 1, 0), types + 4),
        }[self.config.direction]
        ordered = {} if self._causal else {"order_ids": order}
        return {**batch, **ordered, "token_type_ids": jnp.where(mask > 0, kinds, 0)}

    def cloze(self, rows: dict[str, np.ndarray]) -> Cloze:
        """Return the masked tokens of a batch of rows, and the neighbours that the direction shows."""
        found, direction = super().cloze(rows), self.config.direction
        row, slot = np.nonzero(rows["masked_weights"])
        of_target = rows["token_type_ids"][row, rows["masked_positions"][row, slot]] > 0
        hides_left = np.full(len(row), direction == "right to left")
        hides_right = (direction == "left to right") | (of_target & (direction == "sequence to sequence"))
        left, right = np.where(hides_left, HIDDEN, found.left), np.where(hides_right, HIDDEN, found.right)
        return Cloze(left, right, found.label)


def _check_token_types(model: ModelConfig, direction: Direction) -> None:
    """Raise ``UserError`` if the encoder of ``model`` reads token types, and the direction needs more of them."""
    reads = "token_type_ids" in encoder_file(model.encoder).Encoder.reads and model.type_vocab_size > 0
    if direction != "both sides" and reads and model.type_vocab_size < TOKEN_TYPES:
        raise UserError(
            f"the direction {direction!r} has token types up to {TOKEN_TYPES - 1}, and the model tells "
            f"{model.type_vocab_size} apart; set config.model.type_vocab_size to {TOKEN_TYPES}, or take an encoder "
            "without token types"
        )
