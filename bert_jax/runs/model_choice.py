"""The architecture of a run: named by its recipe, or that of the model it starts from."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from types import ModuleType
from typing import Any

from bert_jax import configuration
from bert_jax.errors import UserError
from bert_jax.interchange.initial import Initial
from bert_jax.models.config import ModelConfig
from bert_jax.models.model import BERT, encoder_file, recorded

# Fields of config.model that a model to start from leaves open; the rest is its architecture.
OPEN_MODEL_FIELDS = ("dropout_rate", "attention_dropout_rate", "dtype", "layers", "remat")


def choose_model(model: Mapping[str, Any], vocabulary_size: int, initial: Initial | None) -> ModelConfig:
    """Return the architecture of ``initial``, else ``model.size``, with the fields of ``config.model`` that differ."""
    said = {"vocab_size": vocabulary_size} | _said(model)
    # Built with ``initial`` too: a slip is one there as well.
    own: ModelConfig = configuration.build(_file(model).Config, said, "config.model", also=("encoder", "size"))
    if initial is None:
        return own
    chosen = {name: getattr(own, name) for name in OPEN_MODEL_FIELDS if name in said}
    return dataclasses.replace(initial.model, **chosen, vocab_size=vocabulary_size)


def what_gives_way(model: Mapping[str, Any], typed: Collection[str], initial: Initial) -> list[str]:
    """Return lines about the settings of the model in which a recipe and ``initial`` differ.

    Args:
      typed: keys of the config that were typed on the command line, such as ``model.size``.

    Raises:
      UserError: one of them is what ``initial`` says otherwise.
    """
    held = recorded(initial.model) | {"vocab_size": initial.tokenizer.size}
    differing = {
        name: f"{name} {held[name]}"
        for name, value in ({"encoder": model.get("encoder", BERT)} | _said(model)).items()
        if name in held and name not in OPEN_MODEL_FIELDS and value != held[name]
    }
    of_size = _file(model).SIZES.get(model.get("size", ""), {})
    wrong = {
        f"--config.{key}={model.get(key.partition('.')[2], '...')}"
        for name in differing
        for key in ("model", f"model.{name}", *(("model.size",) if name in of_size else ()))
        if key in typed
    }
    has = ", ".join(differing.values())
    if wrong:
        raise UserError(
            f"{' '.join(sorted(wrong))} contradicts --init={initial.source}, whose model has {has}; a run that starts "
            "from a model has its architecture: leave it out, or start without --init"
        )
    return [f"the model of --init is taken, not the recipe's: {has}"] if differing else []


def old_model(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return what keys of ``config.model``, or of a recorded model, meant that an earlier version did not record."""
    return {"encoder": BERT, **configuration.old_defaults(_file(model).Config)}


def _file(model: Mapping[str, Any]) -> ModuleType:
    return encoder_file(model.get("encoder", BERT))


def _said(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the encoder's ``Config`` that a recipe names, those of its size too."""
    size = model.get("size")
    fields = configuration.choose("model size", size, _file(model).SIZES) if size else {}
    return {**fields, **{name: value for name, value in model.items() if name not in ("encoder", "size")}}
