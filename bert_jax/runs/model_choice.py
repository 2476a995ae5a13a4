"""Chooses the architecture of a run: the recipe's, or the architecture of the model from which the run starts."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from bert_jax import configuration
from bert_jax.errors import UserError
from bert_jax.interchange.initial import may_grow_types
from bert_jax.interchange.tokenizer_files import is_padded
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.models.config import ModelConfig, TransformerConfig
from bert_jax.models.heads import DEFAULT_POOLING
from bert_jax.models.kernels import choice as kernels
from bert_jax.models.model import config_facts, encoder_file, fresh_params
from bert_jax.objectives.base import PretrainingObjective
from bert_jax.objectives.several import SeveralObjectives
from bert_jax.parts import own_code
from bert_jax.recipes.architecture import Architecture
from bert_jax.records import BatchSpec
from bert_jax.rows.phases import Phase
from bert_jax.tasks import mentions, sentence_embeddings

# Fields of config.model that the recipe sets even with --init, as it does an encoder's ``rotary_bases``. All other
# fields are taken from the --init model.
_RATES = tuple(f"{of}dropout_rate" for of in ("", "attention_", "attention_output_", "classifier_", "span_"))
_OF_MEMORY = ("memory_length", "reuse_length", "span")
_OPEN = (*_RATES, *_OF_MEMORY, "dtype", "layers", "remat", "attention_kernel")


def choose_model(architecture: Architecture, vocabulary_size: int, initial: TrainedModel | None) -> ModelConfig:
    """Return the run's model config.

    Without ``initial`` it is the architecture of the recipe. With ``initial`` it is the config of that model, except
    for ``vocab_size``, the open fields (``_OPEN``) that the recipe sets, and more token types (``may_grow_types``). An
    encoder whose file has ``fitted`` takes parameters of other encoders too: then it is the architecture of the recipe
    with the sizes of ``initial``.
    """
    if initial is None:
        return architecture.with_vocabulary(vocabulary_size)
    if (fitted := _fitted(architecture, initial)) is not None:
        return dataclasses.replace(fitted, vocab_size=vocabulary_size)
    known = {field.name for field in dataclasses.fields(initial.config)}
    names = [name for name in _open_to(architecture, initial) if name in architecture.given and name in known]
    chosen = {name: getattr(architecture.config, name) for name in names}
    return dataclasses.replace(initial.config, **chosen, vocab_size=vocabulary_size)


def with_memory_of_recipe(model: ModelConfig, architecture: Architecture) -> ModelConfig:
    """Return ``model`` without memory if the recipe names none, because then its rows may not go on in other rows."""
    if "memory_length" in architecture.given:
        return model
    defaults: dict[str, Any] = {
        field.name: field.default for field in dataclasses.fields(model) if field.name in _OF_MEMORY
    }
    return dataclasses.replace(model, **defaults)


def _open_to(architecture: Architecture, initial: TrainedModel) -> tuple[str, ...]:
    """Return the fields that the recipe sets even with ``initial``."""
    grows = may_grow_types(initial.config.type_vocab_size, architecture.config.type_vocab_size)
    return (*_OPEN, *architecture.config.rotary_bases, *(("type_vocab_size",) if grows else ()))


def _fitted(architecture: Architecture, initial: TrainedModel) -> ModelConfig | None:
    """Return the recipe's config with the sizes of ``initial``, whose encoder is another; None if there is no such."""
    encoder = architecture.config.encoder
    fit = getattr(encoder_file(encoder), "fitted", None)
    return None if fit is None or encoder == initial.config.encoder else fit(architecture.config, initial.config)


def of_phase(model: ModelConfig, phase: Phase) -> ModelConfig:
    """Return the run's ``model`` with the keys that ``phase`` replaces.

    Raises ``UserError`` if the model lacks such a key, or a parameter would get another shape.
    """
    if not phase.model:
        return model
    where = f"config.phases.{phase.kind.partition('/')[0]}.model"
    changed: ModelConfig = configuration.build(type(model), phase.model, where, base=model)
    before, after = (jax.eval_shape(functools.partial(fresh_params, config)) for config in (model, changed))
    if jax.tree.map(lambda x: x.shape, before) != jax.tree.map(lambda x: x.shape, after):
        raise UserError(
            f"{where} has {', '.join(phase.model)}, which would give parameters another shape than they have; a phase "
            f"may replace keys such as {' or '.join(('dropout_rate', *model.rotary_bases[:1]))}"
        )
    return changed


def check_extensions(model: ModelConfig, phases: Sequence[Phase]) -> None:
    """Raise ``UserError`` if rows become longer in a phase than the model of this phase can learn to read."""
    model.check_longer_rows([(f"config.phases.{phase.kind}", phase.max_length, phase.model) for phase in phases])


def with_vocabulary_size(
    chosen: ModelConfig, architecture: Architecture, pieces: int, initial: TrainedModel | None
) -> ModelConfig:
    """Return the ``chosen`` model with an embedding for each of ``pieces``, unless the recipe says how many.

    Raises ``UserError`` if the recipe has a number that does not fit; no export of such a model could be read.
    """
    if initial is not None or "vocab_size" not in architecture.given:
        return dataclasses.replace(chosen, vocab_size=pieces)
    if not is_padded(chosen.vocab_size, pieces):
        raise UserError(
            f"the vocabulary has {pieces} pieces, the model {chosen.vocab_size} embeddings; leave "
            f"config.model.vocab_size out to take the vocabulary's, or "
            f"round it up to a multiple of 8, such as {-(-pieces // 8) * 8}"
        )
    return chosen


def overridden_settings(architecture: Architecture, typed: Collection[str], initial: TrainedModel) -> list[str]:
    """Return lines about the settings that the model has from ``initial``, not from the recipe; and about rotary bases.

    The base of rotary positions is the recipe's, because a run may extend a model to longer rows.

    Args:
      typed: the keys of the config that were given on the command line, such as ``model.size``.

    Raises:
      UserError: a setting that was given on the command line differs from ``initial``.
    """
    config = _fitted(architecture, initial) or initial.config
    held, bases = config_facts(config) | {"vocab_size": initial.tokenizer.size}, config.rotary_bases
    differing = {
        name: f"{name} {held[name]}"
        for name, value in ({"encoder": architecture.config.encoder} | architecture.given).items()
        if name in held and name not in _open_to(architecture, initial) and value != held[name]
    }
    wrong = {
        f"--config.{key}={architecture.keys.get(key.partition('.')[2], '...')}"
        for name in differing
        for key in ("model", f"model.{name}", *(("model.size",) if name in architecture.of_size else ()))
        if key in typed
    }
    has = ", ".join(differing.values())
    if wrong:
        raise UserError(
            f"{' '.join(sorted(wrong))} contradicts --init={initial.source}, whose model has {has}; a run that starts "
            "from a model has its architecture: leave it out, or start without --init"
        )
    lines = [f"the model of --init is taken, not the recipe's: {has}"] if differing else []
    return lines + [
        f"{name} is the recipe's, {value:g}; the model of --init had {held[name]:g}"
        for name, value in architecture.given.items()
        if name in bases and value != held[name]
    ]


def other_reading(model: ModelConfig, initial: TrainedModel) -> list[str]:
    """Return a line if the objective of ``model`` reads another text than ``initial`` has read, else []."""
    if model.causal == initial.config.causal:
        return []
    then, now = ("what came before" if causal else "both sides" for causal in (initial.config.causal, model.causal))
    return [f"the model of --init predicted tokens from {then}; the objective does from {now}, and so will this model"]


def with_classifier_dropout(task: Any, architecture: Architecture, initial: TrainedModel | None) -> Any:
    """Return the config ``task`` with the dropout rate before the classifier that the config.json of ``initial`` names.

    A rate that the recipe names, in ``task`` or for the whole model, is kept, and so is None if a run of ours trained
    ``initial``.
    """
    rate = initial.head.classifier_dropout if initial and initial.head and initial.run is None else None
    if rate is None or "dropout_rate" in architecture.keys or getattr(task, "dropout_rate", rate) is not None:
        return task
    return dataclasses.replace(task, dropout_rate=rate)


def with_pooling(task: Any, name: str, initial: TrainedModel | None) -> Any:
    """Return the config ``task``, the pooling of sentence vectors filled in if the recipe leaves it to ``initial``.

    If ``initial`` was trained on several tasks, its task ``name`` gives the pooling. Vectors that join several poolings
    are not trained; the default pooling is.
    """
    if initial is None or not isinstance(task, sentence_embeddings.Config) or task.pooling is not None:
        return task
    of_task = (initial.facts.get("tasks") or {}).get(name, {}).get("task") or {}
    said = initial.vectors.pooling
    return dataclasses.replace(task, pooling=of_task.get("pooling") or (said[0] if len(said) == 1 else DEFAULT_POOLING))


def with_entities(task: Any, initial: TrainedModel | None) -> Any:
    """Return the config ``task``, with the entities of the pretraining of ``initial`` if the recipe names none."""
    if initial is None or not isinstance(task, mentions.Config) or task.entities:
        return task
    config = (initial.facts.get("run") or {}).get("config") or {}
    table, column = own_code.at(config, "objective.entities"), own_code.at(config, "corpus.columns.entity_ids") or {}
    if not table or not column.get("path"):
        return task
    ignore_case = column.get("ignore_case", False)
    return dataclasses.replace(task, entities=table, lexicon=column["path"], ignore_case=ignore_case)


def entity_notes(tasks: Mapping[str, Any], initial: TrainedModel) -> list[str]:
    """Return lines that compare the tables of entities of ``tasks`` with the table that ``initial`` learned with."""
    then, lines = own_code.at(initial.facts, "objective.entities"), []
    for task in tasks.values():
        if then and isinstance(task, mentions.Config) and task.entities:
            now = own_code.contents(type(task), vars(task), "config.task")["entities"]
            same = now.rpartition("@")[2] == then.rpartition("@")[2]
            learned = "with which the model of --init learned" if same else f"and --init learned with another, {then}"
            lines.append(f"the table of entities is {now}, {learned}")
    return lines


def pooling_notes(tasks: Mapping[str, Any], initial: TrainedModel) -> list[str]:
    """Return lines that compare the configs of ``tasks`` with how ``initial`` says that vectors of texts are made."""
    if (said := initial.said_vectors) is None:
        return []
    others = [*map(str, said.steps), *(f"the prompt {name}" for name, _ in said.prompts)]
    others += [f"the first {said.truncate_dim} values alone"] if said.truncate_dim else []
    others += ["lower case before the tokenizer"] if said.lowercase else []
    left = f"; it does without {', '.join(others)}" if others else ""
    theirs, lines = " + ".join(said.pooling), []
    for name, task in tasks.items():
        if isinstance(task, sentence_embeddings.Config):
            key = f"config.tasks.{name}.task.pooling" if name else "config.task.pooling"
            same = "as" if (task.pooling,) == said.pooling else f"not {theirs} as"
            lines.append(f"{key} is {task.pooling or DEFAULT_POOLING}, {same} --init={initial.source} says{left}")
    return lines


def left_to_plain(task: PretrainingObjective | SeveralObjectives) -> list[str]:
    """Return a line that says what plain attention computes although another kernel is named, else []."""
    model = task.setting.model
    ordered = [kind for kind in task.batch_specs if "order_ids" in task.of(kind).derived]
    return (
        kernels.left_to_plain(model.attention_kernel, ordered, model.decodes)
        if isinstance(model, TransformerConfig)
        else []
    )


def check_kernel(model: ModelConfig, mesh: Mesh, specs: Collection[BatchSpec]) -> None:
    """Raise ``UserError`` if ``config.model.attention_kernel`` cannot compute batches of ``specs`` on ``mesh``.

    Raise it too if ``config.mesh.tensor`` does not divide the heads: every device would compute the attention of all.
    Other rows that a run meets, such as shorter rows or the rows of a probe, take plain attention where the kernel
    cannot compute them.
    """
    platform, tensor = mesh.devices.flat[0].platform, mesh.shape["tensor"]
    if model.num_heads % tensor:
        fitting = ", ".join(str(n) for n in range(1, model.num_heads + 1) if model.num_heads % n == 0)
        raise UserError(
            f"config.mesh.tensor is {tensor}, which does not divide the model's {model.num_heads} attention heads, so "
            f"that every device would compute all of them; take one of {fitting}"
        )
    if isinstance(model, TransformerConfig):
        kernels.check(model.attention_kernel, [kernels.case_of(model, spec, platform, tensor) for spec in specs])
