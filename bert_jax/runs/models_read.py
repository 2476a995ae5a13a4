"""The trained models that an objective reads beside the model that it trains, such as a teacher; whether they fit."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from bert_jax.errors import UserError
from bert_jax.interchange.loading import load, one_task
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.losses.distillation import FROZEN
from bert_jax.losses.teacher import WHERE, Teacher, TeacherConfig, content, first_params
from bert_jax.models.config import ModelConfig
from bert_jax.models.model import encoder_file
from bert_jax.objectives.base import PretrainingObjective
from bert_jax.records import BatchSpec
from bert_jax.task import Task, tasks_of
from bert_jax.text import tokenizer as tokenizers
from bert_jax.text.tokenizer import Tokenizer

MODEL = "model"  # key of the metadata of a field that names a trained model
Models: TypeAlias = Mapping[str, TrainedModel]  # by the field of the objective's config that names the model


def read_models(config: Any, where: str, read: Callable[..., TrainedModel] = load) -> dict[str, TrainedModel]:
    """Return the models that an objective's ``config`` names. Raises ``UserError`` as ``load``.

    ``where`` is the path of the objective's keys.
    """
    paths = {one.name: getattr(config, one.name) for one in dataclasses.fields(config) if MODEL in one.metadata}
    return {name: read(path, flag=f"{where}.{name}=") for name, path in paths.items() if path}


def in_run(models: Models, model: ModelConfig, max_lengths: Mapping[str, int], where: str) -> dict[str, TrainedModel]:
    """Return ``models`` as a run computes them that trains ``model``: in the dtype of ``model``.

    Raises ``UserError`` if a model has fewer positions than the rows, whose kinds have ``max_lengths``.
    """
    for name, one in models.items():
        if too_long := {kind: n for kind, n in max_lengths.items() if n > one.config.max_length}:
            kind, length = next(iter(too_long.items()))
            raise UserError(
                f"{where}.{name}={one.source} reads at most {one.config.max_length} positions, and the rows of {kind}"
                f" have {length}; lower config.phases.{kind}.max_length, or take another model"
            )
    return {
        name: dataclasses.replace(one, config=dataclasses.replace(one.config, dtype=model.dtype))
        for name, one in models.items()
    }


def read_teacher(config: TeacherConfig | None, read: Callable[..., TrainedModel] = load) -> dict[str, TrainedModel]:
    """Return the model of ``config.teacher`` by the name of its key; {} if there is none. See ``read_models``."""
    if config is None:
        return {}
    if not config.init:
        raise UserError(
            f"{WHERE}.init is needed, the model to learn from: a Hugging Face directory, the workdir of a run, or "
            "WORKDIR@step"
        )
    model = read(config.init, flag=f"{WHERE}.init=")
    return {"init": one_task(model, config.task, f"{WHERE}.task") if config.task else model}


def teacher_of_finetuning(
    config: TeacherConfig | None,
    initial: TrainedModel | None,
    vocabulary: str | None,
    read: Callable[..., TrainedModel] = load,
) -> dict[str, TrainedModel]:
    """Return the teacher of a fine-tuning from ``initial``, or with the vocabulary at a path; see ``read_teacher``.

    Raises ``UserError`` if the teacher has another vocabulary, or the run would have to learn a vocabulary.
    """
    models = read_teacher(config, read)
    if initial and any(one.tokenizer.sha256 != initial.tokenizer.sha256 for one in models.values()):
        raise UserError(
            f"{WHERE}.init={models['init'].source} has another vocabulary than --init={initial.source}, and reads no "
            "other; take a teacher, or a model to start from, with the same one"
        )
    if not (initial or vocabulary):
        check_vocabulary(models, None, WHERE)
    return models


def teacher_in_run(
    config: TeacherConfig | None, models: Models, model: ModelConfig, max_lengths: Mapping[str, int], task: str = ""
) -> Teacher | None:
    """Return the teacher of ``read_teacher`` as a run computes it that trains ``model``; see ``in_run``.

    ``task``: the task that the run trains, if it has several. Of a teacher with several tasks, the task of the same
    name teaches it.
    """
    if config is None:
        return None
    trained = in_run(models, model, max_lengths, WHERE)["init"]
    if not (task and trained.facts.get("tasks")):
        return Teacher(config, trained, trained.params)
    return Teacher(config, one_task(trained, task, f"task of {WHERE}.init={trained.source}"), trained.params)


def initial_of_teacher(
    config: TeacherConfig | None, models: Models, model: ModelConfig, initial: TrainedModel | None
) -> TrainedModel | None:
    """Return the teacher with its chosen layers alone, if a run that trains ``model`` starts from them; else None.

    Raises ``UserError`` if the layers do not fit ``model``, or if there is an ``initial`` model to start from.
    """
    if config is None or config.start is None:
        return None
    if initial:
        raise UserError(
            f"{WHERE}.start takes the first parameters from the teacher, and --init={initial.source} those of another "
            "model; leave one of them out"
        )
    teacher = models["init"]
    params = first_params(teacher.params, config.start, model, teacher.config)
    return dataclasses.replace(teacher, params=params, source=f"{teacher.source}, layers {config.start}")


def frozen_contents(objective: PretrainingObjective) -> dict[str, str]:
    """Return the digests of the models and arrays that an objective reads and does not train, by name.

    The digest of a model counts all of its content.
    """
    setting = objective.setting
    models = {**setting.models, **({FROZEN: setting.teacher.trained} if setting.teacher else {})}
    digests = objective.given.digests
    return {name: content(models[name], one) if name in models else one for name, one in digests.items()}


def check_features(models: Models, specs: Mapping[str, BatchSpec], where: str) -> None:
    """Raise ``UserError`` if rows are packed, and the encoder of a model does not tell packed sequences apart."""
    for name, one in models.items():
        needed = {"position_ids", "sequence_ids"} & {feature for spec in specs.values() for feature in spec}
        if unread := sorted(needed - encoder_file(one.config.encoder).Encoder.reads):
            raise UserError(
                f"the encoder of {where}.{name}={one.source} does not read {unread[0]}; set config.objective.packing to"
                " 'none'"
            )


def check_vocabularies(task: Task, tokenizer: Tokenizer | None, added: Sequence[str]) -> None:
    """Raise ``UserError`` if rows of a pretraining ``task`` need a token that ``tokenizer`` lacks.

    The reasons of ``check_vocabulary`` are others, for each model that the task reads.
    """
    for one in tasks_of(task).values():
        if tokenizer:
            one.check_tokens(tokenizer)
        check_vocabulary(one.setting.models, tokenizer, one.setting.where, added)
        if one.setting.teacher:
            check_vocabulary({"init": one.setting.teacher.trained}, tokenizer, WHERE, added)


def check_vocabulary(models: Models, tokenizer: Tokenizer | None, where: str, added: Sequence[str] = ()) -> None:
    """Raise ``UserError`` unless each model has the run's ``tokenizer``; None: it is yet to be learned.

    ``added``: the tokens of ``config.vocab.added``, which ``tokenizer`` has.
    """
    for name, one in models.items():
        if tokenizer is None or tokenizer.sha256 != one.tokenizer.sha256:
            if added:
                raise UserError(
                    f"{where}.{name}={one.source} has a vocabulary of its own, and config.vocab.added adds "
                    f"{', '.join(added)} to that of the run; leave config.vocab.added out, or take a model that was "
                    "trained with these tokens"
                )
            folder = one.workdir or one.source
            file = tokenizers.existing(folder) or folder
            raise UserError(
                f"{where}.{name}={one.source} has {'another' if tokenizer else 'a'} vocabulary of its own, and reads no"
                f" other; add --config.vocab.path={os.fspath(file)} --config.vocab.lowercase={one.tokenizer.lowercase}"
            )
