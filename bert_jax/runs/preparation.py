"""Prepares a pretraining run: checks its recipe as far as that needs no text, then gives it the text."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh

from bert_jax import configuration
from bert_jax.corpora.mixture import Mixture, check_shares, normalised
from bert_jax.errors import UserError
from bert_jax.features.fill_mask import check_masked, encode_masked
from bert_jax.interchange.hugging_face import check_family
from bert_jax.interchange.initial import continued_seed
from bert_jax.interchange.loading import load
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.losses import distillation
from bert_jax.models.config import ModelConfig
from bert_jax.objectives.base import PretrainingObjective, Setting
from bert_jax.objectives.reading import of_other_rows
from bert_jax.objectives.several import Several, seed_of_member
from bert_jax.objectives.terms import check_meanings
from bert_jax.parts import catalogue
from bert_jax.planning.compile import compile_phase, dearest_kind
from bert_jax.program import size
from bert_jax.reporting.loggers.base import check_loggers
from bert_jax.rows.phases import Phase
from bert_jax.rows.units import columns
from bert_jax.runs import own_parts
from bert_jax.runs.evaluations import base as evaluations
from bert_jax.runs.inputs import Inputs
from bert_jax.runs.model_choice import (
    check_extensions,
    check_kernel,
    choose_model,
    of_phase,
    with_vocabulary_size,
)
from bert_jax.runs.models_read import (
    check_features,
    check_vocabularies,
    in_run,
    read_models,
    read_teacher,
    start_from_teacher,
    teacher_in_run,
)
from bert_jax.runs.settings import PretrainingSettings, member_of
from bert_jax.task import Task, tasks_of
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.training import layer_rates, trained
from bert_jax.training import mesh as meshes
from bert_jax.training.evaluation import Evaluation
from bert_jax.training.experiment import Experiment
from bert_jax.training.memory import check_fits, device_bytes

MOST_BYTES_PER_FLOP = 1 / 40  # of a train step; measured: 1/86 with narrow models, 1/300 with wide ones


@dataclasses.dataclass(frozen=True)
class CheckedPretraining:
    """A pretraining recipe that is checked as far as that needs no text.

    Attributes:
      initial: the model from which the run starts, or has started.
      parent: the entries of the run's facts that name the run from which it starts.
      task: the objective, or those of the phases, still without text. Until the vocabulary is there, the size of its
        model's vocabulary is that of ``initial`` or of ``config.vocab``.
      start: the model from whose layers the run starts, if the teacher's are to be taken.
    """

    settings: PretrainingSettings
    initial: TrainedModel | None
    parent: dict[str, str]
    task: PretrainingObjective | Several
    experiment: Experiment
    mesh: Mesh
    start: TrainedModel | None

    def inputs(self, workdir: str, bound: bool, typed: tuple[str, ...] = ()) -> Inputs:
        """Return what finds or makes the vocabulary and the corpus.

        Args:
          bound: whether the run has saved a step.
          typed: the keys of the config that were given on the command line.

        Raises ``UserError`` for every mistake that can be found before any text is read.
        """
        settings = self.settings
        own = (settings.vocab, settings.corpus, self.initial, bound, settings.private, self.task.units)
        inputs = Inputs(workdir, *own, typed=typed)
        if not bound:
            check_vocabularies(self.task, inputs.source_tokenizer, settings.vocab.added)
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
        check_metrics(settings.selection.metric, experiment, task, self.mesh)
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
    for module, config, own, where, _, models in chosen:
        of_own = of_phase(model, own[0])
        lengths, changes = {p.kind: p.max_length for p in own}, {p.kind: p.changes for p in own}
        with own_parts.contract_of(catalogue.name_of(module.__name__)):
            own_seed, read_too = seed_of_member(seed, member_of(own[0])), in_run(models, of_own, lengths, where)
            taught = teacher_in_run(settings.teacher, teacher, of_own, lengths)
            rows = _rows_of(own, settings, experiment.evaluated_phase)
            setting = Setting(of_own, lengths, own_seed, changes, settings.seed, read_too, where, taught, **rows)
            one = module.Objective(config, setting)
            own_parts.check_objective(one)
        check_features(models, one.batch_specs, where)
        check_features(teacher, one.batch_specs, distillation.WHERE)
        _check_whole_batches(one, experiment, mesh)
        check_kernel(one.setting.model, mesh, [one.batch_specs[kind] for kind in lengths])
        objectives.append(one)
    check_extensions(model, phases)
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
        check_steps_fit(task, experiment)
    return CheckedPretraining(settings, initial, parent, task, experiment, mesh, start)


def check_steps_fit(task: Task, experiment: Experiment) -> None:
    """Raise ``UserError`` if the step of a phase needs more memory than the CPU devices of this machine have.

    The steps of phases whose FLOPs say that this could be are compiled, for their memory is known then. Other devices
    say themselves, before the first step, what they cannot hold.
    """
    devices = jax.devices()
    if devices[0].platform != "cpu" or (there := device_bytes(devices[0])) is None:
        return
    for phase in experiment.phases.phases:
        rows = phase.batch_size / len(devices) / experiment.micro_batches(phase)
        if rows * task.flops_per_row[dearest_kind(task, phase)] * MOST_BYTES_PER_FLOP <= there:
            continue
        if (needed := compile_phase(task, experiment, phase, devices).needed_bytes) > there:
            where = f"config.phases.{phase.kind}"
            fitting = 2 ** int(math.log2(max(1.0, phase.batch_size * there / needed)))
            raise UserError(
                f"{where}.batch_size is {phase.batch_size:,}: a step takes {size(needed)} of memory on each of "
                f"{len(devices)} CPU devices, which have {size(there)}; give --{where}.batch_size={fitting}, a shorter "
                f"{where}.max_length, or more parts of a batch, {where}.micro_batches"
            )


def _rows_of(phases: list[Phase], settings: PretrainingSettings, evaluated: Phase) -> dict[str, Any]:
    """Return what a ``Setting`` says of the rows of ``phases``, whose objective it is for: shares, held-out masks.

    Raises ``UserError`` for shares that do not fit the parts of the corpus.
    """
    given = {phase.kind: phase.shares for phase in phases if phase.shares is not None}
    for kind, shares in given.items():
        check_shares(shares, settings.corpus.parts, f"config.phases.{kind.partition('/')[0]}.shares")
    is_evaluated = evaluated.kind in {phase.kind.partition("/")[0] for phase in phases}
    return {
        "heldout_masking": settings.training.eval_masking if is_evaluated else {},
        "shares": {kind: normalised(shares) for kind, shares in given.items()},
    }


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


def check_metrics(metric: str, experiment: Experiment, task: Task, mesh: Mesh) -> None:
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
    layer_rates.check(task, experiment.schedule.layer_decay)


def micro_batches_key(phase: Phase) -> str:
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
            f"{micro_batches_key(phase)} is {parts}, and objective {task.name!r} reads whole batches; only 1 is "
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
