"""The architecture of a run: named by its recipe, or that of the model it starts from."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from bert_jax import configuration
from bert_jax.interchange.initial import Initial
from bert_jax.models.config import ModelConfig
from bert_jax.models.sizes import SIZES

# Fields of config.model that a model to start from leaves open; the rest is its architecture.
OPEN_MODEL_FIELDS = ("dropout_rate", "attention_dropout_rate", "dtype", "layers", "remat")


def choose_model(model: Mapping[str, Any], vocabulary_size: int, initial: Initial | None) -> ModelConfig:
    """That of ``initial``, else ``model.size``, with the fields of ``config.model`` that differ."""
    overrides = {name: value for name, value in model.items() if name != "size"}
    build = functools.partial(configuration.build, ModelConfig, where="config.model", also=("size",))
    if initial is not None:
        chosen = {name: overrides[name] for name in OPEN_MODEL_FIELDS if name in overrides}
        build({"vocab_size": vocabulary_size} | overrides)  # a slip is one here too
        return dataclasses.replace(initial.model, **chosen, vocab_size=vocabulary_size)
    size = model.get("size")
    fields = dict(configuration.choose("model size", size, SIZES)) if size else {}
    return build({"vocab_size": vocabulary_size} | fields | overrides)
