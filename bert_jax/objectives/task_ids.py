"""The base class of the tasks of ERNIE 2.0 besides masked words (Sun et al. 2020).

Such a task replaces no token, and tells the encoder its number, so that each token has the embedding of the task.
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from bert_jax.configuration import check_fields
from bert_jax.errors import UserError
from bert_jax.objectives import base
from bert_jax.objectives.base import Setting
from bert_jax.records import Batch
from bert_jax.rows.masking import MaskingConfig


@dataclasses.dataclass(frozen=True)
class Config(base.Config):
    """The keys of ``config.objective``, besides its name. Each objective has another default of ``task_id``."""

    task_id: int = 0  # the row of the encoder's task embeddings, if config.model.task_type_vocab_size is not 0
    where: dataclasses.InitVar[str] = "config.objective"

    def __post_init__(self, where: str) -> None:
        check_fields(self, where, "0 or more is needed", "task_id", sound=lambda value: value >= 0)


class WithTaskId(base.PretrainingObjective):
    """Adds the feature ``task_type_ids`` [B, L], which is ``task_id`` everywhere, if the encoder has task embeddings.

    An objective that adds features of its own returns ``super().inputs(...)`` with them. ``config.objective.masking``
    must not be set.
    """

    def __init__(self, config: Config, setting: Setting):
        """See ``PretrainingObjective``. Raises ``UserError`` if the encoder has no embedding of this task."""
        size = setting.model.task_type_vocab_size
        if size and config.task_id >= size:
            raise UserError(
                f"{setting.where}.task_id is {config.task_id}, and the model has embeddings of {size} tasks, from 0 on;"
                f" set config.model.task_type_vocab_size to {config.task_id + 1} or more, or give a smaller task_id"
            )
        self.task_id = config.task_id if size else None
        self.derived = (*self.derived, "task_type_ids") if size else self.derived
        super().__init__(config, setting)

    def inputs(self, batch: Batch) -> Batch:
        if self.task_id is None:
            return batch
        return {**batch, "task_type_ids": jnp.full_like(batch["input_ids"], self.task_id)}

    def masking(self, config: MaskingConfig, where: str) -> MaskingConfig:
        return config.changing_nothing(where, self.name)
