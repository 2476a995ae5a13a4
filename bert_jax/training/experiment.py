"""The settings of a training besides its task: ``config.training``, phases, optimizer, mesh, saves and others."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import numpy as np
import optax
from jax.sharding import Mesh

from bert_jax.checkpoints import revisions
from bert_jax.checkpoints.saving import CheckpointConfig
from bert_jax.cluster.watchdog import MOST_SECONDS
from bert_jax.configuration import check_fields, choose
from bert_jax.errors import UserError
from bert_jax.parts.catalogue import display_name, is_own, name_of
from bert_jax.reporting.profiled_steps import ProfiledSteps
from bert_jax.rows.loader import LoaderConfig
from bert_jax.rows.phases import Phase, Phases, steps_per_epoch
from bert_jax.task import Task
from bert_jax.training import lanes, layer_rates, trained
from bert_jax.training import mesh as meshes
from bert_jax.training.mesh import MeshConfig
from bert_jax.training.optimizers.base import Rule
from bert_jax.training.schedules.base import Warmup
from bert_jax.training.selection import SelectionConfig
from bert_jax.training.state import InitialState, TrainState
from bert_jax.training.step import jit_train_step, make_gradients, make_train_step


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """How often a run logs and evaluates, and other settings of the loop.

    Only ``on_spike`` can change the result of training, and ``gradient_dtype`` its rounding.
    """

    log_every_steps: int = 100  # steps of a line of metrics
    logs_per_evaluation: int | None = None  # in place of log_every_steps: lines of metrics between two evaluations
    eval_every_steps: int = 1000  # steps between two evaluations
    evaluations_per_epoch: int | None = None  # in place of eval_every_steps: evaluations while every row is seen once
    eval_rows: int = 2048  # held-out rows of an evaluation, the same every time
    # keys of config.objective.masking that held-out rows have whatever is trained, such as rate
    eval_masking: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    eval_phase: str | None = None  # the phase whose rows are evaluated; if None, the last phase
    micro_batches: int = 1  # gradient accumulation: the parts in which a batch is computed; a phase may set its own
    gradient_dtype: Literal["float32", "bfloat16"] | None = None  # of sums over devices; if None, config.model.dtype
    max_skipped_in_a_row: int = 10  # the run ends if loss or gradient are not finite in this many steps in a row
    on_spike: Literal["warn", "roll_back"] = "warn"  # what to do after log steps in which the loss leaps
    stall_seconds: float = 900.0  # a step may always take so long (several processes: --heartbeat_seconds)
    # where metrics go besides metrics.jsonl: tensorboard, wandb, mlflow, trackio
    loggers: tuple[str, ...] = ("tensorboard",)
    # evaluations besides the held-out rows: NAME -> its keys, with which its metrics are called NAME/METRIC
    evaluations: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        # A command line may give several loggers as a,b. The recorded name of a user's own file may have a comma.
        split = [[name] if is_own(name) else name.split(",") for name in self.loggers]
        object.__setattr__(self, "loggers", tuple(name.strip() for names in split for name in names))
        names = ("log_every_steps", "eval_every_steps", "eval_rows", "micro_batches", "max_skipped_in_a_row")
        check_fields(self, "config.training", "at least 1 is needed", *names, sound=lambda value: value >= 1)
        rates = ("logs_per_evaluation", "evaluations_per_epoch")
        check_fields(self, "config.training", "at least 1 is needed", *rates, sound=lambda n: n is None or n >= 1)
        allowed = f"more than 0 and at most {MOST_SECONDS:,.0f} is needed"
        check_fields(self, "config.training", allowed, "stall_seconds", sound=lambda value: 0 < value <= MOST_SECONDS)


@dataclasses.dataclass(frozen=True)
class Experiment:
    """All settings of a training besides its task. They are checked before anything slow begins."""

    seed: int
    phases: Phases
    optimizer: Rule
    schedule: Warmup
    mesh: MeshConfig
    training: TrainingConfig
    checkpoints: CheckpointConfig
    loader: LoaderConfig
    selection: SelectionConfig = SelectionConfig()
    profiled: ProfiledSteps | None = None
    own_schedules: Mapping[str, Warmup] = dataclasses.field(default_factory=dict)  # of phases, by name
    # name -> step, of the steps that config.checkpoints.at names: they are saved and kept for ever
    revisions: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if (name := self.training.eval_phase) is not None:
            choose("phase in config.training.eval_phase", name, {phase.kind: phase for phase in self.phases.phases})
        if self.selection.metric and self.training.on_spike == "roll_back":
            raise UserError(
                "config.training.on_spike is 'roll_back', which would drop the best step that config.selection.metric "
                "chooses; only 'warn' is allowed beside it"
            )

    @property
    def evaluated_phase(self) -> Phase:
        """The phase whose kind of rows every evaluation reads."""
        named = [phase for phase in self.phases.phases if phase.kind == self.training.eval_phase]
        return named[0] if named else self.phases.phases[-1]

    def micro_batches(self, phase: Phase) -> int:
        """Return the number of parts in which a batch of ``phase`` is computed."""
        return phase.micro_batches or self.training.micro_batches

    @property
    def save_every_steps(self) -> int:
        """The steps between two saves."""
        return self.checkpoints.every_steps or self.training.eval_every_steps

    def in_steps(self, task: Task, words: Callable[[Phase], float] | None = None) -> Experiment:
        """Return the same experiment, where what is given in epochs or words has the steps that follow from the rows.

        Args:
          words: returns the words of an epoch of a phase. If None, words are not counted.

        Raises ``UserError`` if ``config.checkpoints.at`` does not fit the run, or counts words that are not counted.
        """
        training = self.training

        def per_epoch(index: int) -> float:
            return self.steps_per_epoch(task, index)

        phases = self.phases.in_steps(per_epoch) if self.phases.in_epochs else self.phases
        if training.evaluations_per_epoch is not None:
            number = max(1, round(phases.num_epochs(per_epoch) * training.evaluations_per_epoch))
            training = dataclasses.replace(training, eval_every_steps=-(-phases.num_steps // number))
        if training.logs_per_evaluation is not None:
            every = max(1, training.eval_every_steps // training.logs_per_evaluation)
            training = dataclasses.replace(training, log_every_steps=every)
        found = dataclasses.replace(self, phases=phases, training=training)

        def words_of_step(index: int) -> float:
            if words is None:
                raise UserError(f"{revisions.WHERE} counts words, which only a pretraining has; give steps or tokens")
            return words(phases.phases[index]) / per_epoch(index)

        return dataclasses.replace(found, revisions=revisions.steps_at(self.checkpoints.at, phases, words_of_step))

    def steps_per_epoch(self, task: Task, index: int) -> float:
        """Return the steps of the phase ``index`` that read every row once."""
        phase = self.phases.phases[index]
        source = task.source("train", phase.kind, index).for_batches(phase.batch_size)
        return steps_per_epoch(source.rows_per_epoch, source.buckets, phase.batch_size)

    @property
    def schedules(self) -> dict[str, tuple[Warmup, int]]:
        """Phase with a schedule -> the schedule and its steps; "" -> the run's schedule and the steps of other phases.

        They are in the order in which the run comes to them.
        """
        found = dict[str, list[Phase]]()
        for phase in self.phases.phases:
            found.setdefault(phase.kind if phase.kind in self.own_schedules else "", []).append(phase)
        return {
            name: (self.own_schedules.get(name, self.schedule).in_steps(phases), sum(one.num_steps for one in phases))
            for name, phases in found.items()
        }

    def make_schedule(self) -> optax.Schedule:
        """Return the function that maps a step of the run to its learning rate.

        The schedule of a phase counts from the first step of the phase. The schedule of the run counts only the steps
        of phases that have no schedule.
        """
        made = {name: schedule.make(num_steps) for name, (schedule, num_steps) in self.schedules.items()}
        if not self.own_schedules:
            return made[""]
        parts, starts, common = list[optax.Schedule](), [0], 0
        for phase in self.phases.phases:
            own = made.get(phase.kind)
            parts.append(own or (lambda step, before=common: made[""](step + before)))
            starts.append(starts[-1] + phase.num_steps)
            common += 0 if own else phase.num_steps
        return optax.join_schedules(parts, starts[1:-1])

    def initial_state(self, task: Task, mesh: Mesh) -> InitialState:
        memory = lanes.of_run(task, self.phases)
        return InitialState(task, trained.transformation(task, self.optimizer), mesh, self.mesh.weight_update, memory)

    def jitted_step(self, task: Task, kind: str, phase: Phase, state: TrainState) -> Any:
        """Return the jitted train step of a kind of batch in ``phase``. The loop and every plan compile this function.

        ``state``: a state of the run, which may be of shapes with shardings.
        """
        decay = self.own_schedules.get(phase.kind, self.schedule).layer_decay
        tx, of_kind = layer_rates.scaled(trained.transformation(task, self.optimizer), decay), task.of(kind)
        gradients = make_gradients(of_kind, self.micro_batches(phase), state.params, self.training.gradient_dtype)
        train_step = make_train_step(of_kind, tx, self.make_schedule(), self.seed, gradients)
        return jit_train_step(train_step, state, self.mesh.overlap)

    def make_mesh(self, devices: list[jax.Device] | None = None) -> Mesh:
        """Return the mesh of ``devices`` (default: all).

        Raises ``UserError`` if it does not divide each phase's batch.
        """
        mesh = meshes.make_mesh(self.mesh, devices)
        for phase in self.phases.phases:
            where = f"config.phases.{phase.kind}.batch_size"
            meshes.check_batch(mesh, phase.batch_size, self.micro_batches(phase), where)
        return mesh

    def check(self, devices: list[jax.Device] | None = None) -> Mesh:
        """Check everything that can be wrong before any text is read; return the mesh of ``devices`` (default: all).

        Raises:
          UserError: a schedule is longer than the run or its phase, the mesh does not divide the devices or a batch, or
            it splits matrices that the optimizer needs whole.
        """
        if not self.phases.in_epochs:
            revisions.steps_at(self.checkpoints.at, self.phases, None)
        for schedule, num_steps in self.schedules.values():
            of_step, where = schedule.make(num_steps), f"{schedule.path}.name"
            if shape := jax.eval_shape(of_step, jax.ShapeDtypeStruct((), "int32")).shape:
                raise UserError(f"{where}: the rate of a step is an array {list(shape)}, not one number")
            if is_own(name_of(type(schedule).__module__)):
                steps = np.linspace(0, num_steps - 1, 1000).astype(np.int32)
                rates = np.asarray(jax.vmap(of_step)(steps))
                if (wrong := ~np.isfinite(rates)).any():
                    raise UserError(f"{where}: the rate of step {steps[wrong][0]} is {rates[wrong][0]}")
        mesh = self.make_mesh(devices)
        if self.optimizer.whole_matrices and meshes.may_split(mesh, self.mesh.weight_update):
            name = display_name(name_of(type(self.optimizer).__module__))
            raise UserError(
                f"config.optimizer.name is {name}, which needs whole matrices, and with "
                f"config.mesh.weight_update 'sharded' each of {mesh.size} devices has a part; give "
                "--config.mesh.weight_update=replicated"
            )
        return mesh
