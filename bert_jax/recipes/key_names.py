"""The groups and short names of keys; ``recipes`` and ``configuration.build`` refuse unknown keys."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Mapping
from typing import Any

from ml_collections import ConfigDict

from bert_jax.configuration import nearest
from bert_jax.errors import UserError
from bert_jax.parts.own_code import at

# The fields of PretrainingSettings and FinetuningSettings, copied so that reading a recipe does not import the classes.
BOTH = (
    "model", "phases", "seed", "vocab", "optimizer", "schedule", "selection", "mesh", "training", "checkpoints",
    "loader", "export", "teacher",
)  # fmt: skip
# Groups of both whose keys all have defaults.
SETTINGS = ("vocab", "optimizer", "schedule", "selection", "mesh", "training", "checkpoints", "loader")
PRETRAINING = ("objective", *BOTH, "corpus", "examples", "private")
FINETUNING = ("task", "data", "tasks", "mixing", *BOTH, "packing", "weights", "frozen", "bilstm_layers")
# Short names of keys that most runs set; {} is the recipe's only phase. Commands have flags of these names.
SHORT = {
    "learning_rate": "schedule.peak_learning_rate",
    "epochs": "phases.{}.num_epochs",
    "steps": "phases.{}.num_steps",
    "batch_size": "phases.{}.batch_size",
    "max_length": "phases.{}.max_length",
}
# Groups whose keys are names that a recipe chooses.
NAMED = ("phases", "tasks", "objective.members", "phases.*.objective.members", "corpus.parts", "corpus.columns")


def groups(recipe: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the top-level keys that a recipe of the same kind (pretraining or fine-tuning) may have."""
    return FINETUNING if is_finetuning(recipe) else PRETRAINING


def is_finetuning(recipe: Mapping[str, Any]) -> bool:
    """Return whether a recipe is for fine-tuning."""
    return "task" in recipe or "tasks" in recipe


def full(key: str, recipe: Mapping[str, Any]) -> str:
    """Return the key that ``key``, perhaps a short one, names in a recipe.

    Raises ``UserError`` for a short key of a phase if the recipe has several phases.
    """
    long = SHORT.get(key, key)
    if "{}" not in long:
        return long
    phases = list(recipe.get("phases") or {}) or ["train"]
    if len(phases) > 1:
        flags = " or ".join(f"--config.{long.format(phase)}=VALUE" for phase in phases)
        raise UserError(f"{key} is of one phase, and the recipe has {len(phases)}; give {flags}")
    return long.format(phases[0])


def check_attention(keys: Collection[str]) -> None:
    """Raise ``UserError`` if ``keys`` name the attention of the model, which follows from the objective."""
    if "model.attention" in keys:
        raise UserError(
            "config.model.attention follows from config.objective.name, which says who sees whom: 'ltr' reads what came"
            " before; leave config.model.attention out"
        )


def check_names(keys: list[str], recipe: Mapping[str, Any], config: ConfigDict) -> None:
    """Raise ``UserError`` if a typed key, the path ``keys``, adds a name to a group in which the ``recipe`` has names.

    A typed key may fill a group that the recipe leaves empty. In others a slip would train a phase or a task more.
    ``config``: the recipe with the changes so far.
    """
    for pattern in NAMED:
        *path, name = keys[: pattern.count(".") + 2]
        where = ".".join(path)
        if not fnmatch.fnmatchcase(where, pattern) or not isinstance(given := at(recipe, where), Mapping) or not given:
            continue
        if name not in (names := at(config, where) or {}):
            raise UserError(
                f"unknown key config.{where}.{name}; {nearest(name, names)}; new names of {where} come from a recipe "
                "file, not from flags"
            )
