"""Prepares a run: checks its recipe as far as that needs no text, then gives it the text. Each thing is made once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import jax
from jax.sharding import Mesh

from bert_jax import catalogue, configuration
from bert_jax.corpora.mixture import Mixture
from bert_jax.errors import UserError
from bert_jax.examples.load import load as load_examples
from bert_jax.examples.load import to_train_on
from bert_jax.examples.splits import train_split
from bert_jax.features.fill_mask import check_masked, encode_masked
from bert_jax.features.trained_model import TrainedModel
from bert_jax.interchange.hugging_face import check_family
from bert_jax.interchange.initial import continued_seed
from bert_jax.interchange.loading import load
from bert_jax.models import distillation
from bert_jax.models.config import ModelConfig
from bert_jax.objectives.base import PretrainingObjective, Setting
from bert_jax.objectives.reading import of_other_rows
from bert_jax.objectives.several import Several, seed_of_member
from bert_jax.records import Example
from bert_jax.reporting.loggers.base import check_loggers
from bert_jax.rows.phases import Phase, Phases
from bert_jax.rows.units import columns
from bert_jax.runs import own_parts
from bert_jax.runs.evaluations import base as evaluations
from bert_jax.runs.inputs import Inputs, find_vocabulary
from bert_jax.runs.model_choice import (
    check_kernel,
    choose_model,
    with_classifier_dropout,
    with_vocabulary_size,
)
from bert_jax.runs.models_read import (
    Models,
    check_features,
    check_vocabulary,
    in_run,
    read_models,
    read_teacher,
    start_from_teacher,
    teacher_in_run,
    teacher_of_finetuning,
)
from bert_jax.runs.settings import FinetuningSettings, PretrainingSettings, member_of
from bert_jax.runs.task_settings import TaskSettings, at_task, main_metrics, with_keys_of
from bert_jax.task import Task, check_meanings, tasks_of
from bert_jax.tasks import base as tasks
from bert_jax.tasks.base import KIND, ExampleTask
from bert_jax.tasks.several import Member, SeveralTasks, each_task
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.training import mesh as meshes
from bert_jax.training import trained
from bert_jax.training.evaluation import Evaluation
from bert_jax.training.experiment import Experiment
from bert_jax.training.memory import check_fits

Splits: TypeAlias = Mapping[str, tuple[Example, ...]]  # name -> examples


@dataclasses.dataclass(frozen=True)
class CheckedPretraining:
    """A pretraining recipe that is checked as far as that needs no text.

    Attributes:
      initial: the model from which the run starts, or has started.
      parent: the entries of the run's facts that name the run from which it starts.
      task: the objective, or those of the phases, still without text. Until the vocabulary is there, the size of its
        model's vocabulary is that of ``initial`` or of ``config.vocab``.
      teacher: the model of ``config.teacher``, by the name of its key.
      start: the model from whose layers the run starts, if the teacher's are to be taken.
    """

    settings: PretrainingSettings
    initial: TrainedModel | None
    parent: dict[str, str]
    task: PretrainingObjective | Several
    experiment: Experiment
    mesh: Mesh
    teacher: Models
    start: TrainedModel | None

    def inputs(self, workdir: str, bound: bool) -> Inputs:
        """Return what finds or makes the vocabulary and the corpus. ``bound``: whether the run has saved a step.

        Raises ``UserError`` for every mistake that can be found before any text is read.
        """
        settings = self.settings
        own = (settings.vocab, settings.corpus, self.initial, bound, settings.private, self.task.units)
        inputs = Inputs(workdir, *own)
        if not bound:
            for one in tasks_of(self.task).values():
                check_vocabulary(one.setting.models, inputs.source_tokenizer, one.setting.where)
            check_vocabulary(self.teacher, inputs.source_tokenizer, distillation.WHERE)
        inputs.check()
        return inputs

    def with_text(self, tokenizer: Tokenizer, corpus: Mixture) -> tuple[PretrainingObjective | Several, Experiment]:
        """Return the task on a corpus, and the experiment, in which lengths given in epochs have become steps.

        Raises ``UserError`` if the text does not fit the model or the examples, the schedule does not fit the steps, or
        no evaluation reports the metric by which the best step is selected.
        """
        settings = self.settings
        model = with_vocabulary_size(self.task.setting.model, settings.model, tokenizer.size, self.initial)
        if settings.fills(model):
            encode_masked(settings.examples or (), tokenizer, model.max_length, "config.examples")
        task = self.task.with_text(corpus, tokenizer, model.vocab_size)
        experiment = self.experiment.in_steps(task)
        experiment.make_schedule()
        _check_metrics(settings.selection.metric, experiment, task, self.mesh)
        return task, experiment


def check_pretraining(
    settings: PretrainingSettings,
    initial: TrainedModel | None = None,
    devices: list[jax.Device] | None = None,
    read: Callable[..., TrainedModel] = load,
) -> CheckedPretraining:
    """Check everything in a recipe that can be checked before text is read.

    Args:
      initial: the model from which the run starts.
      devices: the devices to run on. If None, all devices of this job, whose memory is then checked too.
      read: reads the models that the objective names, such as a teacher.

    Raises:
      UserError: settings do not exist, make no sense, or do not fit each other.
    """
    seed, parent = continued_seed(settings.seed, initial, "pretraining")
    experiment = dataclasses.replace(settings.experiment(), seed=seed)
    phases = experiment.phases.phases
    chosen = [(*one, read_models(one.config, one.where, read)) for one in settings.objectives(phases)]
    if settings.teacher and settings.teacher.cached:
        raise UserError(f"{distillation.WHERE}.cached is for fine-tuning; rows of pretraining are never the same twice")
    teacher = read_teacher(settings.teacher, read)
    pieces = [model.tokenizer.size for models in (*(one[-1] for one in chosen), teacher) for model in models.values()]
    model = first_model(settings, initial, next(iter(pieces), None))
    start = start_from_teacher(settings.teacher, teacher, model, initial)
    mesh = experiment.check(devices)
    check_loggers(settings.training.loggers)
    evaluations.check(settings.training.evaluations, settings.selection.metric)
    objectives: list[PretrainingObjective] = []
    for module, config, own, where, models in chosen:
        lengths, changes = {p.kind: p.max_length for p in own}, {p.kind: p.changes for p in own}
        with own_parts.contract_of(catalogue.name_of(module.__name__)):
            own_seed, read_too = seed_of_member(seed, member_of(own[0])), in_run(models, model, lengths, where)
            taught = teacher_in_run(settings.teacher, teacher, model, lengths)
            setting = Setting(model, lengths, own_seed, changes, settings.seed, read_too, where, taught)
            one = module.Objective(config, setting)
            own_parts.check_objective(one)
        check_features(models, one.batch_specs, where)
        check_features(teacher, one.batch_specs, distillation.WHERE)
        _check_whole_batches(one, experiment, mesh)
        check_kernel(one.setting.model, mesh, [one.batch_specs[kind] for kind in lengths])
        objectives.append(one)
    members = {
        phase.kind: {name: (one.kind, share) for name, (one, share, _) in settings.members(phase).items()}
        for phase in phases
    }
    task = objectives[0] if len(objectives) == 1 else Several(objectives, members)
    kinds, specs = {kind for one in objectives for kind in one.setting.max_lengths}, task.batch_specs
    own_parts.check_optimizer(task, experiment)
    if settings.export:
        check_family(task.setting.model)
    _check_kinds(task, experiment)
    _check_columns(settings, task.units)
    if settings.corpus.parts and any(name not in kinds for name in specs):
        raise UserError("a mixture has rows of one length: set config.objective.packing to 'packed' or 'none'")
    if settings.fills(task.setting.model):
        check_masked(settings.examples or (), "config.examples")
    if devices is None:
        batches = {f"config.phases.{p.kind}.batch_size": (p.batch_size, specs[p.kind]) for p in phases}
        evaluated = {"config.training.eval_rows": (settings.training.eval_rows, specs[experiment.evaluated_phase.kind])}
        check_fits(model.num_parameters, batches | evaluated)
    return CheckedPretraining(settings, initial, parent, task, experiment, mesh, teacher, start)


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
            with at_task(name):
                check_kernel(model, mesh, [spec])
                check_fits(model.num_parameters, {f"config.phases.{KIND}.batch_size": (phase.batch_size, spec)})
                jax.eval_shape(one.init, jax.random.key(0))  # raises for options that the model cannot be built from
                if catalogue.is_own(catalogue.name_of(type(one).__module__)):
                    own_parts.check_terms(one, spec, dict)
        if settings.selection.metric != task.main_metric or settings.training.evaluations:
            _check_metrics(settings.selection.metric, experiment, task, mesh)
        own_parts.check_optimizer(task, experiment)
        trained.check(task, experiment.optimizer)
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
        check_vocabulary(self.teacher, tokenizer, distillation.WHERE)
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
        chosen[name] = ChosenTask(one, task, config)
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
            f"{_micro_batches_key(settings.phase)} is {parts}; only 1 is allowed where the rows of a batch are each "
            f"other's negatives{f', as in config.tasks.{name}' if name else ''}. Lower "
            f"config.phases.{KIND}.batch_size, or set config.model.remat to 'full'"
        )
    model = choose_model(settings.model, initial.tokenizer.size if initial else settings.vocab.size, initial)
    model.check_lengths({f"config.phases.{KIND}.max_length": settings.phase.max_length})
    teacher = teacher_of_finetuning(settings.teacher, initial, settings.vocab.path)
    start_of_layers = start_from_teacher(settings.teacher, teacher, model, initial)
    return CheckedFinetuning(settings, initial, parent, model, chosen, experiment, teacher, start_of_layers)


def first_model(settings: PretrainingSettings, initial: TrainedModel | None, pieces: int | None = None) -> ModelConfig:
    """Return the architecture of a run before there is text, with the size of vocabulary that is to be expected.

    ``pieces`` is this size if it is known.

    Raises ``UserError`` if the recipe has no architecture and there is no model to start from.
    """
    if initial is None and not settings.model:
        raise UserError(
            "config.model is empty, because this recipe goes on from a model and has its architecture; give "
            "--init=DIR, a Hugging Face directory or the workdir of a run"
        )
    vocab = settings.vocab
    size = vocab.with_added(initial.tokenizer).size if initial else vocab.size + len(vocab.added)
    return choose_model(settings.model, pieces or size, initial)


def _check_columns(settings: PretrainingSettings, units: tuple[str, ...]) -> None:
    """Raise ``UserError`` if units of masking are columns that the corpus is to be built without."""
    builds = not (settings.corpus.path or settings.corpus.parts)
    if builds and (absent := [name for name in columns(units) if name not in settings.corpus.columns]):
        known = configuration.nearest(absent[0], ("piece", "word", *settings.corpus.columns))
        raise UserError(
            f"config.objective.masking.unit is {absent[0]!r}, a column that the corpus is to be built without "
            f"({known}); name its annotator, such as --config.corpus.columns=\"{{'{absent[0]}': {{'annotator':"
            " 'segmenter'}}\", or take the unit 'word'"
        )


def _check_metrics(metric: str, experiment: Experiment, task: Task, mesh: Mesh) -> None:
    """Raise ``UserError`` if no evaluation reports ``metric``, or two may give one name. This does not run the model.

    ``metric`` is that by which the best step is selected; "" is allowed.
    """
    others, (name, slash, _) = experiment.training.evaluations, metric.partition("/")
    if not (metric or others):
        return
    known = Evaluation(task, mesh, experiment.evaluated_phase, experiment.training.eval_rows).metric_names()
    if both := others.keys() & {one.partition("/")[0] for one in known}:
        raise UserError(
            f"{evaluations.WHERE}.{min(both)} has the name of a metric of the held-out rows; give it another one"
        )
    given = slash and name in others  # the evaluation at step 0 says whether it gives this metric
    if metric and not given and metric not in known:
        names = [*known, *(f"{name}/METRIC" for name in others)]
        raise UserError(f"config.selection.metric is {metric!r}; {configuration.nearest(metric, names)}")


def _check_kinds(task: PretrainingObjective | Several, experiment: Experiment) -> None:
    """Raise ``UserError`` if kinds of batches give one metric two meanings, or train what cannot be trained alone."""
    check_meanings({kind: one.terms(one.config) for kind, one in tasks_of(task).items()})
    trained.check(task, experiment.optimizer)


def _micro_batches_key(phase: Phase) -> str:
    """Return the key that says in how many parts a batch of ``phase`` is computed."""
    return f"config.{f'phases.{phase.kind}' if phase.micro_batches else 'training'}.micro_batches"


def _check_whole_batches(task: PretrainingObjective, experiment: Experiment, mesh: Mesh) -> None:
    """Raise ``UserError`` if ``task`` computes something from a whole batch, and would be given a part of it.

    What ``inputs`` computes is tried on random rows if ``task.whole_batches`` does not say it.
    """
    kinds = {kind.partition("/")[0]: kind for kind in task.setting.max_lengths}  # by phase
    phase = max((one for one in experiment.phases.phases if one.kind in kinds), key=experiment.micro_batches)
    parts = experiment.micro_batches(phase)
    if task.whole_batches and parts > 1:
        raise UserError(
            f"{_micro_batches_key(phase)} is {parts}, and objective {task.name!r} reads whole batches; only 1 is "
            "allowed: lower the batch_size of the phases, or set config.model.remat to 'full'"
        )
    split = meshes.may_split(mesh, experiment.mesh.weight_update)
    if task.whole_batches or not task.derived or not (split or parts > 1):
        return
    if names := of_other_rows(task.inputs, task.batch_specs[kinds[phase.kind]], task.derived):
        raise UserError(
            f"objective {task.name!r} computes {', '.join(names)} of a row from other rows, of which a device or "
            "micro-batch sees a part; set whole_batches = True in its class, or run on one device without micro-batches"
        )
