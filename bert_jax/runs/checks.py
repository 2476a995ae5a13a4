"""Checks of a recipe beside the machine, the optimizer and the task of its run."""

from __future__ import annotations

import math

import jax
from jax.sharding import Mesh

from bert_jax import configuration
from bert_jax.errors import UserError
from bert_jax.objectives.base import PretrainingObjective
from bert_jax.objectives.reading import of_other_rows
from bert_jax.objectives.several import SeveralObjectives
from bert_jax.parts import catalogue
from bert_jax.planning.compile import compile_phase, costliest_kind
from bert_jax.program import size
from bert_jax.rows.phases import Phase
from bert_jax.runs.evaluations import base as evaluations
from bert_jax.task import Task
from bert_jax.training import lanes, layer_rates, trained
from bert_jax.training import mesh as meshes
from bert_jax.training.evaluation import Evaluation
from bert_jax.training.experiment import Experiment
from bert_jax.training.memory import device_bytes

_MOST_BYTES_PER_FLOP = 1 / 40  # of a train step; measured: 1/86 with narrow models, 1/300 with wide ones


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
        if rows * task.flops_per_row[costliest_kind(task, phase)] * _MOST_BYTES_PER_FLOP <= there:
            continue
        if (needed := compile_phase(task, experiment, phase, devices).needed_bytes) > there:
            where = f"config.phases.{phase.kind}"
            fitting = 2 ** int(math.log2(max(1.0, phase.batch_size * there / needed)))
            raise UserError(
                f"{where}.batch_size is {phase.batch_size:,}: a step takes {size(needed)} of memory on each of "
                f"{len(devices)} CPU devices, which have {size(there)}; give --{where}.batch_size={fitting}, a shorter "
                f"{where}.max_length, or more parts of a batch, {where}.micro_batches"
            )


def check_memory(task: PretrainingObjective | SeveralObjectives, experiment: Experiment, has_parts: bool) -> None:
    """Raise ``UserError`` if ``task`` has memory that its batches cannot hand on. ``has_parts``: a mixture is read."""
    if not lanes.of_run(task, experiment.phases):
        return
    instead = "and the model has memory, which a batch hands on to the batch that goes on where it ends; set"
    if has_parts:
        raise UserError(
            f"config.corpus.parts is a mixture, whose rows come in random order, {instead} config.model.memory_length "
            "to 0, or give one corpus"
        )
    if experiment.training.on_spike == "roll_back":
        raise UserError(f"config.training.on_spike is 'roll_back', which skips batches, {instead} it to 'warn'")


def check_lanes(task: PretrainingObjective | SeveralObjectives, experiment: Experiment) -> None:
    """Raise ``UserError`` if the text is too short for the lanes of a batch, or a lane for the memory of the model."""
    evaluated = experiment.evaluated_phase
    sources = [(task.source("train", p.kind, i), p) for i, p in enumerate(experiment.phases.phases)]
    sources += [(task.source("eval", kind, 0, part), evaluated) for part, kind in task.heldout(evaluated.kind).items()]
    for source, phase in sources:
        if (dealt := source.for_batches(phase.batch_size)) is source:
            continue  # its rows are in no lanes, and counting them may plan an epoch
        model = task.of(phase.kind).setting.model
        memory, step = getattr(model, "memory_length", 0), getattr(model, "reuse_length", 0) or phase.max_length
        tokens = dealt.rows_per_epoch // phase.batch_size * step
        if memory > tokens:
            raise UserError(
                f"config.model.memory_length is {memory:,}, and each of {phase.batch_size} rows of a batch reads "
                f"{tokens:,} tokens of a text, or of its held-out part; give at most {tokens:,}, a smaller "
                f"config.phases.{phase.kind}.batch_size or more text"
            )


def check_metrics(metric: str, experiment: Experiment, task: Task, mesh: Mesh) -> None:
    """Raise ``UserError`` if no evaluation reports ``metric``, or two may give one name. This does not run the model.

    ``metric`` selects the best step; "" is allowed.
    """
    others, (name, slash, _) = experiment.training.evaluations, metric.partition("/")
    if not (metric or others):
        return
    known = Evaluation(task, mesh, experiment.evaluated_phase, experiment.training.eval_rows).metric_names()
    if both := others.keys() & {name.partition("/")[0] for name in known}:
        raise UserError(
            f"{evaluations.WHERE}.{min(both)} has the name of a metric of the held-out rows; give it another one"
        )
    given = slash and name in others  # the evaluation at step 0 says whether it gives this metric
    if metric and not given and metric not in known:
        names = [*known, *(f"{name}/METRIC" for name in others)]
        raise UserError(f"config.selection.metric is {metric!r}; {configuration.nearest(metric, names)}")


def check_exported(task: PretrainingObjective | SeveralObjectives) -> None:
    """Raise ``UserError`` if transformers has no class for a model of ``task``, which a run would export."""
    if task.differs:
        raise UserError(
            f"config.export is True, and transformers has no class for this model: it {task.differs}; set "
            "config.export to False"
        )


def check_optimizer(task: Task, experiment: Experiment) -> None:
    """Raise ``UserError`` if the optimizer or the schedule cannot train ``task``."""
    name = catalogue.name_of(type(experiment.optimizer).__module__)
    if catalogue.is_own(name):
        params = meshes.unbox(jax.eval_shape(task.init, jax.random.key(0)).params)
        experiment.optimizer.check(params, catalogue.display_name(name))
    trained.check(task, experiment.optimizer)
    for schedule in (experiment.schedule, *experiment.own_schedules.values()):
        layer_rates.check(task, schedule.layer_decay)


def check_one_part(phase: Phase, parts: int, why: str) -> None:
    """Raise ``UserError`` if a batch of ``phase`` is computed in several ``parts``.

    ``why``: words that say what reads the whole batch, and which size to lower.
    """
    if parts > 1:
        key = f"config.{f'phases.{phase.kind}' if phase.micro_batches else 'training'}.micro_batches"
        raise UserError(f"{key} is {parts}{why}, or set config.model.remat to 'full'")


def check_whole_batches(task: PretrainingObjective, experiment: Experiment, mesh: Mesh) -> None:
    """Raise ``UserError`` if ``task`` computes something from a whole batch, and would be given a part of it.

    If ``task.whole_batches`` does not say so, ``inputs`` is tried on random rows.
    """
    kinds = {kind.partition("/")[0]: kind for kind in task.setting.max_lengths}  # by phase
    phase = max((phase for phase in experiment.phases.phases if phase.kind in kinds), key=experiment.micro_batches)
    parts = experiment.micro_batches(phase)
    if task.whole_batches:
        reads = f", and objective {task.name!r} reads whole batches; only 1 is allowed"
        check_one_part(phase, parts, f"{reads}: lower the batch_size of the phases")
        return
    if not task.derived or not (meshes.may_split(mesh, experiment.mesh.weight_update) or parts > 1):
        return
    if names := of_other_rows(task.inputs, task.batch_specs[kinds[phase.kind]], task.derived):
        raise UserError(
            f"objective {task.name!r} computes {', '.join(names)} of a row from other rows, of which a device or "
            "micro-batch sees a part; set whole_batches = True in its class, or run on one device without micro-batches"
        )
