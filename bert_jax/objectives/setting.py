"""The keys that every pretraining objective has, and the arguments that it gets besides them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from bert_jax.losses.teacher import Teacher
from bert_jax.models.config import ModelConfig
from bert_jax.rows.masking import MaskingConfig
from bert_jax.rows.rows_config import SHORT_ROWS, Packing


@dataclasses.dataclass(frozen=True)
class Config:
    """The keys of ``config.objective`` that every objective has, besides ``name``; a phase may replace them.

    A phase with a ``name`` in its ``objective`` has another objective, whose other keys are given there.
    """

    # share of sequences that are made shorter than a row (arrangements of pairs)
    short_row_probability: float = SHORT_ROWS
    masking: MaskingConfig = MaskingConfig()
    packing: Packing = "none"  # how many sequences a row has (bert_jax/rows/README.md)
    max_pairs_per_row: int | None = None  # the most sequences of a packed row; if None, one for every 16 positions
    arrangement: str | None = None  # the name of a file in rows/arrangements; if None, the objective's default
    arrangement_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # the fields of that Arrangement


ROW_KEYS = tuple(field.name for field in dataclasses.fields(Config))


class Setting(NamedTuple):
    """The arguments that every objective gets besides its config, all known before text is read.

    Attributes:
      max_lengths: kind of batch (one per phase) -> the number of positions of a row.
      changes: kind of batch -> the keys of ``config.objective`` that its phase replaces, with their values.
      heldout_seed: the seed of the held-out rows. If None, it is ``seed``.
      heldout_masking: the keys of masking that held-out rows have in place of the keys of their phase.
      models: field of the objective's config (metadata "model") -> the ``TrainedModel`` that it names.
      where: the path of the objective's keys in the recipe, for messages.
      teacher: the model of ``config.teacher``.
      shares: kind of batch -> the share of its rows from each part of a mixture, if the phase has its own shares.
      batch_sizes: kind of batch -> the rows of a batch, on which the order of rows in lanes depends.
    """

    model: ModelConfig
    max_lengths: Mapping[str, int]
    seed: int = 0
    changes: Mapping[str, Mapping[str, Any]] = {}
    heldout_seed: int | None = None
    models: Mapping[str, Any] = {}
    where: str = "config.objective"
    teacher: Teacher | None = None
    heldout_masking: Mapping[str, Any] = {}
    shares: Mapping[str, Mapping[str, float]] = {}
    batch_sizes: Mapping[str, int] = {}
