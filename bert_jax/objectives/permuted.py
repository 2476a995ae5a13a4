"""Permutation language modelling (Yang et al. 2019, "XLNet", sections 2.2 to 2.4; zihangdai/xlnet, data_utils.py).

The tokens that ``masking`` selects are predicted one after another, in an order that is drawn for each row: each from
all tokens that are not selected, and from the selected tokens before it in the order. So the model learns how tokens
that it predicts depend on each other, which masks cannot teach. No token is replaced: the encoder computes a second
stream for the predicted positions (``query_positions``), which knows a position but not its token.

Who sees whom is the rank of each position, ``order_ids``; the functions of the encoder compare ranks:

========================  =====================  ==================================================================
position                  rank                   sees
========================  =====================  ==================================================================
selected                  drawn                  lower ranks; its token is seen by higher ranks
``[CLS]``, ``[SEP]``      drawn                  itself and lower ranks; never predicted
any other                 the lowest of a part   itself and the others of this rank, and earlier parts
========================  =====================  ==================================================================

Rows of ``stream_pairs`` have two parts, of which the first does not see the second; other rows are one part. Memory is
seen by all. The order is drawn on the host, from the key of the row, as masks are: an order that followed from the
tokens of a row would tell the model about them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.configuration import check_fields
from bert_jax.errors import UserError
from bert_jax.models.config import ModelConfig
from bert_jax.models.model import LM_HEAD, QUERIES, has_queries
from bert_jax.objectives import base
from bert_jax.objectives.base import Setting, Term, prediction
from bert_jax.parts import catalogue
from bert_jax.records import Batch, BatchSpec
from bert_jax.rows.masking import MaskingConfig
from bert_jax.rows.ngram_models import HIDDEN, Cloze

_SHARES = {(0.0, 0.0), (MaskingConfig.mask_share, MaskingConfig.random_share)}


@dataclasses.dataclass(frozen=True)
class Config(base.Config):
    """The keys of ``config.objective``, besides its name.

    Attributes:
      perm_size: the positions of a part among which an order is drawn. Such blocks of a part follow each other from
        left to right. If None, a part is one block.
    """

    masking: MaskingConfig = MaskingConfig(
        "ngrams_in_context", rate=1 / 6, mask_share=0.0, random_share=0.0, unit="word"
    )
    perm_size: int | None = None
    where: dataclasses.InitVar[str] = "config.objective"

    def __post_init__(self, where: str) -> None:
        check_fields(self, where, "at least 1, or None, is needed", "perm_size", sound=lambda n: n is None or n >= 1)


class Objective(base.PretrainingObjective):
    """Predicts the selected tokens in a random order; the loss is the mean over these tokens of the global batch.

    The encoder needs two streams.
    """

    config: Config
    parts = (LM_HEAD,)
    arrangement = "sentences"
    derived = ("order_ids", QUERIES)
    titles: ClassVar[Mapping[str, str]] = {
        "plm_loss": "Permutation-LM loss, nats",
        "plm_accuracy": "Permutation-LM accuracy",
        "plm_accuracy_no_punctuation": "Permutation-LM accuracy without punctuation",
    }

    def __init__(self, config: Config, setting: Setting):
        self._perm_size = config.perm_size
        if setting.teacher and not has_queries(setting.teacher.trained.config.encoder):
            raise UserError(
                f"config.teacher.init={setting.teacher.trained.source} has one stream, and would read the tokens that "
                "the objective 'permuted' predicts; take a model of encoder xlnet as the teacher"
            )
        super().__init__(config, setting)

    def terms(self, config: Config) -> dict[str, Term]:
        return {"plm": prediction("mlm_logits", "masked_labels", "masked_weights", baseline="cloze")}

    def inputs(self, batch: Batch) -> Batch:
        """Return ``batch`` with the ranks ``order_ids`` [B, L] and the predicted positions ``query_positions`` [B, P].

        Ranks of packed sequences are compared within a sequence alone.
        """
        ids, reused = batch["input_ids"], batch.get("reuse_lengths")
        moves = _selected(batch) | (jnp.isin(ids, self._marks) & (batch["attention_mask"] > 0))
        places = batch.get("position_ids")
        places = (
            jnp.broadcast_to(jnp.arange(ids.shape[1], dtype=jnp.int32)[None], ids.shape) if places is None else places
        )
        begins = jnp.zeros_like(ids[:, :1]) if reused is None else reused
        ranks = order(batch["order_draws"], moves, places, begins, self._perm_size)
        return {**batch, "order_ids": ranks, QUERIES: batch["masked_positions"]}

    @property
    def _marks(self) -> jax.Array:
        """The ids of ``[CLS]`` and ``[SEP]``."""
        ids = self.tokenizer.role_ids if self.tokenizer else {}
        return jnp.array([ids.get(role, -1) for role in ("cls", "sep")], jnp.int32)

    def masking(self, config: MaskingConfig, where: str) -> MaskingConfig:
        if (config.mask_share, config.random_share) not in _SHARES:
            raise UserError(
                f"{where}.mask_share is {config.mask_share} and random_share {config.random_share}, and the objective "
                "'permuted' replaces no token; leave both out"
            )
        return dataclasses.replace(config, mask_share=0.0, random_share=0.0)

    def flops(self, spec: BatchSpec) -> float:
        """Return the FLOPs of a row: the second stream has all products of the first but keys and values."""
        model, length, predicted = self.setting.model, spec["input_ids"].shape[0], spec["masked_positions"].shape[0]
        return super().flops(spec) + predicted * (model.train_flops(length) / length)

    def cloze(self, rows: dict[str, np.ndarray]) -> Cloze:
        """Return the predicted tokens of a batch of rows, and the neighbours that each sees."""
        ranks = np.pad(np.asarray(jax.jit(self.inputs)(rows)["order_ids"]), ((0, 0), (1, 1)))
        ids = np.where(np.isin(rows["input_ids"], self.special_ids), HIDDEN, rows["input_ids"].astype(np.int64))
        ids = np.pad(ids, ((0, 0), (1, 1)), constant_values=HIDDEN)
        row, slot = np.nonzero(rows["masked_weights"])
        place = rows["masked_positions"][row, slot] + 1
        left, right = (
            np.where(ranks[row, there] < ranks[row, place], ids[row, there], HIDDEN) for there in (place - 1, place + 1)
        )
        return Cloze(left, right, rows["masked_labels"][row, slot].astype(np.int64))

    def _check_model(self, model: ModelConfig) -> None:
        if not has_queries(model.encoder):
            able = [name for name in catalogue.parts("models.encoders", having="Encoder") if has_queries(name)]
            raise UserError(
                f"objective {self.name!r} needs an encoder with two streams, and encoder {model.encoder!r} has one; "
                f"config.model.encoder may be {', '.join(able)}"
            )
        super()._check_model(model)


def _selected(batch: Batch) -> jax.Array:
    """Return whether each position is predicted, [B, L]."""
    places = jnp.arange(batch["input_ids"].shape[1], dtype=jnp.int32)[None, None]
    real = (batch["masked_weights"] > 0)[:, :, None]
    return jnp.any(real & (batch["masked_positions"][:, :, None] == places), axis=1)


def order(draws: jax.Array, moves: jax.Array, places: jax.Array, begins: jax.Array, size: int | None) -> jax.Array:
    """Return the rank of each position in the order of factorization, int32 [B, L].

    Args:
      draws: [B, L] random numbers, which order the positions of a block.
      moves: [B, L] whether a position has a rank of its own. All others of a part share the lowest rank of the part.
      places: [B, L] the position within the sequence.
      begins: [B, 1] where the second part begins; 0 if there is one part.
      size: the positions of a block; if None, a part is one block.
    """
    second = places >= begins
    block = (places - jnp.where(second, begins, 0)) // (size or draws.shape[1])
    stage = second * (draws.shape[1] + 2) + jnp.where(moves, 1 + block, 0)
    ranks = jnp.argsort(jnp.lexsort((draws, stage)), axis=-1).astype(jnp.int32)
    return jnp.where(moves, ranks, jnp.where(second, begins, 0))
