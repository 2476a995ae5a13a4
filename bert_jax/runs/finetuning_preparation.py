"""Prepares a fine-tuning run: checks its recipe as far as that needs no examples, then gives it the examples."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import jax

from bert_jax.errors import UserError
from bert_jax.examples.load import load as load_examples
from bert_jax.examples.load import to_train_on
from bert_jax.examples.splits import train_split
from bert_jax.interchange.initial import continued_seed
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.losses import distillation
from bert_jax.models.config import ModelConfig
from bert_jax.objectives.several import seed_of_member
from bert_jax.parts import catalogue
from bert_jax.records import Example
from bert_jax.reporting.loggers.base import check_loggers
from bert_jax.rows.phases import Phases
from bert_jax.runs import own_parts
from bert_jax.runs.evaluations import base as evaluations
from bert_jax.runs.inputs import find_vocabulary
from bert_jax.runs.model_choice import (
    check_kernel,
    choose_model,
    with_classifier_dropout,
    with_pooling,
    with_vocabulary_size,
)
from bert_jax.runs.models_read import (
    Models,
    check_vocabulary,
    start_from_teacher,
    teacher_in_run,
    teacher_of_finetuning,
)
from bert_jax.runs.packed import check_packed_batch, check_packing
from bert_jax.runs.preparation import check_metrics, check_steps_fit, micro_batches_key
from bert_jax.runs.settings import FinetuningSettings
from bert_jax.runs.task_settings import TaskSettings, at_task, main_metrics, with_keys_of
from bert_jax.tasks import base as tasks
from bert_jax.tasks.base import KIND, PACKED, ExampleTask
from bert_jax.tasks.several import Member, SeveralTasks, each_task
from bert_jax.training import layer_rates, trained
from bert_jax.training.experiment import Experiment
from bert_jax.training.memory import check_fits

Splits: TypeAlias = Mapping[str, tuple[Example, ...]]  # name -> examples


class ChosenTask(NamedTuple):
    """A task of a recipe: its keys, its class and its config."""

    settings: TaskSettings
    task: type[ExampleTask]
    config: Any


@dataclasses.dataclass(frozen=True)
class CheckedFinetuning:
    """A fine-tuning recipe that is checked as far as that needs no examples.

    Attributes:
      initial: the model whose architecture and vocabulary the run has.
      parent: the entries of the run's facts that name the run from which it starts.
      model: the architecture; without ``initial``, its size of vocabulary is known once that is learned.
      tasks: the tasks by name; one that is alone is called "".
      teacher: the model of ``config.teacher``, by the name of its key.
      start: the model from whose layers the run starts, if the teacher's are to be taken.
    """

    settings: FinetuningSettings
    initial: TrainedModel | None
    parent: dict[str, str]
    model: ModelConfig
    tasks: Mapping[str, ChosenTask]
    experiment: Experiment
    teacher: Models
    start: TrainedModel | None

    @property
    def weights_from(self) -> TrainedModel | None:
        """The model whose weights the run starts from."""
        return self.initial if self.settings.weights == "pretrained" else None

    def load(self, folder: str, note: Callable[[str], None]) -> dict[str, Splits]:
        """Return the splits of each task, with all of train.

        Args:
          folder: the paths of ``config.data.splits`` are relative to it.
          note: called with lines about the examples.

        Raises ``UserError`` for the reasons of ``examples.load.load``, or if a task has no split to train or evaluate.
        """
        found: dict[str, Splits] = {}
        for name, one in self.tasks.items():
            notes: list[str] = []
            with at_task(name):
                found[name] = load_examples(one.settings.data, folder, one.task.roles, notes.append)
                train_split(found[name])
            for line in notes:
                note(f"{name}: {with_keys_of(name, line)}" if name else line)
        return found

    def with_examples(
        self, every: Mapping[str, Splits], workdir: str | None = None, note: Callable[[str], None] | None = None
    ) -> tuple[ExampleTask | SeveralTasks, Experiment]:
        """Return the task on the encoded examples, and the experiment, in which lengths given in epochs are steps.

        Args:
          every: the splits of each task, with all of train, whatever ``config.data.train_fraction`` is: labels are
            those of all.
          workdir: the folder with the run's vocabulary, if it has saved a step.
          note: called with a line if a learned vocabulary lacks characters that it should have.

        Raises:
          UserError: the examples do not fit the task, the model or the machine.
        """
        settings, phase = self.settings, self.settings.phase
        made = self._encode(every, workdir, note)
        task: ExampleTask | SeveralTasks = made.get("") or self._several(made)
        phase = dataclasses.replace(phase, max_length=max(one.lengths[KIND] for one in made.values()))
        selection = dataclasses.replace(settings.selection, metric=settings.selection.metric or task.main_metric)
        experiment = dataclasses.replace(self.experiment, phases=Phases((phase,)), selection=selection).in_steps(task)
        mesh = experiment.check()
        for name, one in each_task(task).items():
            spec, model = one.batch_specs[KIND], one.setting.model
            trained_on = [one.batch_specs[kind] for kind in (KIND, PACKED) if kind in one.batch_specs]
            with at_task(name):
                check_kernel(model, mesh, trained_on)
                if PACKED in one.batch_specs:
                    check_packed_batch(one, mesh, experiment.micro_batches(phase))
                check_fits(model.num_parameters, {f"config.phases.{KIND}.batch_size": (phase.batch_size, spec)})
                if settings.packing == "bucketed":
                    check_steps_fit(one, experiment)
                jax.eval_shape(one.init, jax.random.key(0))  # raises for options that the model cannot be built from
                if catalogue.is_own(catalogue.name_of(type(one).__module__)):
                    for own in trained_on:
                        own_parts.check_terms(one, own, dict)
        if settings.selection.metric != task.main_metric or settings.training.evaluations:
            check_metrics(settings.selection.metric, experiment, task, mesh)
        own_parts.check_optimizer(task, experiment)
        trained.check(task, experiment.optimizer)
        layer_rates.check(task, experiment.schedule.layer_decay)
        return task, experiment

    def _several(self, made: Mapping[str, ExampleTask]) -> SeveralTasks:
        frozen = self.settings.frozen
        members = {}
        for name, one in made.items():
            with at_task(name):
                own = self.tasks[name].settings
                members[name] = Member(name, one, own.weight, own.frozen, frozen)
        return SeveralTasks(members, self.settings.mixing, self.settings.phase, frozen)

    def _encode(
        self, every: Mapping[str, Splits], workdir: str | None, note: Callable[[str], None] | None
    ) -> dict[str, ExampleTask]:
        settings, phase, seed = self.settings, self.settings.phase, self.experiment.seed
        splits = {
            name: to_train_on(one.settings.data, every[name], one.task.roles.together)
            for name, one in self.tasks.items()
        }
        read = [(splits[name][train_split(splits[name])], one.task.roles) for name, one in self.tasks.items()]
        tokenizer = find_vocabulary(settings.vocab, self.initial, workdir, read, note)
        model = with_vocabulary_size(self.model, settings.model, tokenizer.size, self.initial)
        check_vocabulary(self.teacher, tokenizer, distillation.WHERE, settings.vocab.added)
        made = {}
        for name, one in self.tasks.items():
            with at_task(name):
                own = tasks.Setting(
                    splits[name],
                    tokenizer,
                    model,
                    one.task.labels(one.config, every[name][train_split(every[name])]),
                    phase.max_length,
                    phase.batch_size,
                    seed_of_member(seed, name),
                    settings.packing,
                    settings.frozen,
                    settings.bilstm_layers,
                    teacher_in_run(settings.teacher, self.teacher, model, {KIND: phase.max_length}, name),
                )
                made[name] = one.task(one.config, own)
        return made


def check_finetuning(settings: FinetuningSettings, initial: TrainedModel | None) -> CheckedFinetuning:
    """Check everything in a recipe that can be checked before examples are read.

    Args:
      initial: the model of --init.

    Raises:
      UserError: settings do not exist, make no sense, or do not fit each other.
    """
    start = initial if settings.weights == "pretrained" else None
    chosen = {}
    for name, one in settings.each.items():
        with at_task(name):
            task, config = one.find()
        config = with_classifier_dropout(config, settings.model, start if task.exported_as else None)
        chosen[name] = ChosenTask(one, task, with_pooling(config, name, start))
    if initial is None and settings.weights == "pretrained" and settings.frozen:
        raise UserError("config.frozen holds parts of a pretrained model; give --init=DIR, or set it to ()")
    seed, parent = continued_seed(settings.seed, start, "fine-tuning")
    experiment = dataclasses.replace(settings.experiment(), seed=seed)
    experiment.check()
    check_loggers(settings.training.loggers)
    evaluations.check(settings.training.evaluations)
    if not (settings.selection.metric or settings.main_metric):
        raise UserError(
            "config.selection.metric is needed, because the main metrics of the tasks have no mean: "
            f"{', '.join(main_metrics(settings.each))}; name one of them"
        )
    parts = experiment.micro_batches(settings.phase)
    for name in [name for name, one in chosen.items() if one.task.whole_batches] if parts > 1 else ():
        raise UserError(
            f"{micro_batches_key(settings.phase)} is {parts}; only 1 is allowed where the rows of a batch are each "
            f"other's negatives{f', as in config.tasks.{name}' if name else ''}. Lower "
            f"config.phases.{KIND}.batch_size, or set config.model.remat to 'full'"
        )
    model = choose_model(settings.model, initial.tokenizer.size if initial else settings.vocab.size, initial)
    model.check_lengths({f"config.phases.{KIND}.max_length": settings.phase.max_length})
    teacher = teacher_of_finetuning(settings.teacher, initial, settings.vocab.path)
    if settings.packing == "packed":
        check_packing(settings, [one.task for one in chosen.values()], [model, *(t.config for t in teacher.values())])
    start_of_layers = start_from_teacher(settings.teacher, teacher, model, initial)
    return CheckedFinetuning(settings, initial, parent, model, chosen, experiment, teacher, start_of_layers)
