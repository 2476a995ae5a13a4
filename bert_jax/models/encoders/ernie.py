"""ERNIE 1.0 (Sun et al. 2019): BERT's computation with ReLU, as in PaddlePaddle's Chinese model.

ERNIE 2.0 (Sun et al. 2020) adds an embedding of the pretraining task to each token. The parameters are BERT's
(``models.encoders.bert``), with ``embeddings/task_type_embeddings`` if the config has a ``task_type_vocab_size``.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

import jax.numpy as jnp

from bert_jax.configuration import check_fields
from bert_jax.models.dropout import RowRng
from bert_jax.models.encoders import bert
from bert_jax.models.encoders.bert import SIZES as SIZES
from bert_jax.models.encoders.bert import LmHead as LmHead
from bert_jax.models.encoders.bert import Pooler as Pooler
from bert_jax.models.encoding import Encoding
from bert_jax.records import Batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(bert.Config):
    """The settings of an ERNIE encoder. Defaults are the base model of ERNIE 1.0."""

    activation: Literal["gelu", "gelu_tanh", "relu"] = "relu"  # as published
    task_type_vocab_size: int = 0  # number of pretraining tasks that have an embedding; 0: none, as in ERNIE 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        allowed = range(2**16 + 1).__contains__
        check_fields(self, "config.model", "0 to 65,536 are allowed", "task_type_vocab_size", sound=allowed)


class Encoder(bert.Encoder):
    """Applies the embeddings and then ``num_layers`` layers, as BERT does."""

    reads: ClassVar[frozenset[str]] = bert.Encoder.reads | {"task_type_ids"}

    def __call__(
        self, batch: Batch, rng: RowRng | None = None, hidden_states: Literal["last", "all"] = "last"
    ) -> Encoding:
        """Encode ``input_ids``, ``attention_mask`` and the features in ``reads``, each [B, L].

        Without ``task_type_ids``, each token has the embedding of task 0. If ``rng`` is None, there is no dropout.
        """
        return super().__call__({"task_type_ids": jnp.zeros_like(batch["input_ids"]), **batch}, rng, hidden_states)
