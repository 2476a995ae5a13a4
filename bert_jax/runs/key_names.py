"""The groups, short names and former names of keys; ``recipes`` and ``configuration.build`` refuse unknown keys."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
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
# Keys of earlier versions, with the names that they have now.
RENAMED = {
    "train": "phases.train, config.schedule and config.training",
    "train.learning_rate": "schedule.peak_learning_rate",
    "train.schedule": "schedule.name",
    "train.warmup_fraction": "schedule.warmup_fraction",
    "train.num_epochs": "phases.train.num_epochs",
    "train.batch_size": "phases.train.batch_size",
    "train.max_length": "phases.train.max_length",
    "train.evaluations_per_epoch": "training.evaluations_per_epoch",
    "train.logs_per_evaluation": "training.logs_per_evaluation",
    "train.buckets": "packing",
    "micro_batches": "training.micro_batches",
    "model.attention": "objective.name, which says who sees whom: 'ltr' reads what came before",
    "optimizer.kind": "optimizer.name",
    "schedule.kind": "schedule.name",
    "loggers": "training.loggers",
    "probe": "training.evaluations.probe, with name='probe', and every=N (one of N evaluations) for every_steps",
}


def groups(recipe: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the top-level keys that a recipe of the same kind (pretraining or fine-tuning) may have."""
    return FINETUNING if is_finetuning(recipe) else PRETRAINING


def is_finetuning(recipe: Mapping[str, Any]) -> bool:
    """Return whether a recipe is one for fine-tuning."""
    return "task" in recipe or "tasks" in recipe


def full(key: str, recipe: Mapping[str, Any]) -> str:
    """Return the key that ``key``, perhaps a short one, names in a recipe.

    Raises ``UserError`` for a short key of one phase if the recipe has several.
    """
    long = SHORT.get(key, key)
    if "{}" not in long:
        return long
    phases = list(recipe.get("phases") or {}) or ["train"]
    if len(phases) > 1:
        flags = " or ".join(f"--config.{long.format(phase)}=VALUE" for phase in phases)
        raise UserError(f"{key} is of one phase, and the recipe has {len(phases)}; give {flags}")
    return long.format(phases[0])


def check_renamed(keys: Sequence[str]) -> None:
    """Raise ``UserError`` for keys of earlier versions; the message has their new names."""
    former = dict.fromkeys(key if key in RENAMED else key.partition(".")[0] for key in keys)
    if renamed := [f"config.{key} is now config.{RENAMED[key]}" for key in former if key in RENAMED]:
        raise UserError("; ".join(renamed))


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
