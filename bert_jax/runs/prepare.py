"""Prepares a run of a recipe: checks all of it that needs no text and no examples. Every verb that trains calls it."""

from __future__ import annotations

from collections.abc import Callable
from typing import overload

import jax

from bert_jax.interchange.loading import load
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.recipes.finetuning_settings import FinetuningSettings
from bert_jax.recipes.pretraining_settings import PretrainingSettings
from bert_jax.runs.finetuning import Finetuning
from bert_jax.runs.pretraining import Pretraining


@overload
def prepare(
    settings: PretrainingSettings,
    initial: TrainedModel | None = None,
    devices: list[jax.Device] | None = None,
    read: Callable[..., TrainedModel] = load,
) -> Pretraining: ...


@overload
def prepare(
    settings: FinetuningSettings,
    initial: TrainedModel | None = None,
    devices: list[jax.Device] | None = None,
    read: Callable[..., TrainedModel] = load,
) -> Finetuning: ...


def prepare(
    settings: PretrainingSettings | FinetuningSettings,
    initial: TrainedModel | None = None,
    devices: list[jax.Device] | None = None,
    read: Callable[..., TrainedModel] = load,
) -> Pretraining | Finetuning:
    """Return what ``runs.run`` leads to its end: the checked recipe with its task, its experiment and its mesh.

    Args:
      initial: the model of --init.
      devices: the devices to run on. If None, all devices of this job, whose memory is then checked too.
      read: reads the other models that the recipe names, such as a teacher.

    Raises:
      UserError: settings do not exist, make no sense, or do not fit each other.
    """
    if isinstance(settings, FinetuningSettings):
        return Finetuning(settings, initial, devices, read)
    return Pretraining(settings, initial, devices, read)
