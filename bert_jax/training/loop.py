"""The training loop, which is the same for every objective and every downstream task."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

import jax
import optax
from jax.sharding import Mesh

from bert_jax.checkpoints.restoring import restore
from bert_jax.checkpoints.saving import CheckpointConfig, Checkpoints, save_best
from bert_jax.cluster import distributed
from bert_jax.cluster.termination import Termination
from bert_jax.cluster.watchdog import MOST_SECONDS, watched
from bert_jax.configuration import check_fields, choose
from bert_jax.errors import Preempted, UserError
from bert_jax.reporting import run_record
from bert_jax.reporting.observer import Observer
from bert_jax.reporting.profiled_steps import ProfiledSteps
from bert_jax.rows.loader import Loader, LoaderConfig
from bert_jax.rows.phases import Phase, Phases, steps_per_epoch
from bert_jax.task import Task
from bert_jax.training import mesh as meshes
from bert_jax.training import peak_rates, roll_back
from bert_jax.training.evaluation import Evaluation
from bert_jax.training.health import Health
from bert_jax.training.mesh import MeshConfig
from bert_jax.training.optimizers import OptimizerConfig, make_optimizer
from bert_jax.training.profiling import Profiler
from bert_jax.training.roll_back import RollBack
from bert_jax.training.schedules import Schedule, ScheduleConfig, make_schedule
from bert_jax.training.selection import Selection, SelectionConfig
from bert_jax.training.sharded_update import unsplit
from bert_jax.training.state import LAST, TrainState, abstract, abstract_fresh, initialise, initialise_frozen
from bert_jax.training.step import jit_train_step, make_train_step, metric_names
from bert_jax.training.stepping import Steps, Window, means_of, zeros_like


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
    eval_phase: str | None = None  # the phase whose rows are evaluated; if None, the last phase
    micro_batches: int = 1  # gradient accumulation: the parts in which a batch is computed; a phase may set its own
    gradient_dtype: Literal["float32", "bfloat16"] | None = None  # of sums over devices; if None, config.model.dtype
    max_skipped_in_a_row: int = 10  # the run ends if loss or gradient are not finite in this many steps in a row
    on_spike: Literal["warn", "roll_back"] = "warn"  # what to do after log steps in which the loss leaps
    stall_seconds: float = 900.0  # a step may always take so long (several processes: --heartbeat_seconds)
    loggers: tuple[str, ...] = ("tensorboard",)  # where metrics go besides metrics.jsonl: tensorboard, wandb, mlflow

    def __post_init__(self) -> None:
        names = ("log_every_steps", "eval_every_steps", "eval_rows", "micro_batches", "max_skipped_in_a_row")
        check_fields(self, "config.training", "at least 1 is needed", *names, sound=lambda value: value >= 1)
        rates = ("logs_per_evaluation", "evaluations_per_epoch")
        check_fields(self, "config.training", "at least 1 is needed", *rates, sound=lambda n: n is None or n >= 1)
        allowed = f"more than 0 and at most {MOST_SECONDS:,.0f} is needed"
        check_fields(self, "config.training", allowed, "stall_seconds", sound=lambda value: 0 < value <= MOST_SECONDS)


@dataclasses.dataclass(frozen=True)
class Experiment:
    """All settings that the loop needs besides the task. They are typed, and checked before anything slow begins."""

    seed: int
    phases: Phases
    optimizer: OptimizerConfig
    schedule: ScheduleConfig
    mesh: MeshConfig
    training: TrainingConfig
    checkpoints: CheckpointConfig
    loader: LoaderConfig
    selection: SelectionConfig = SelectionConfig()
    profiled: ProfiledSteps | None = None

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

    def in_steps(self, task: Task) -> Experiment:
        """Return the same experiment, where what is given in epochs has the steps that follow from the task's rows."""
        training = self.training

        def per_epoch(index: int) -> float:
            phase = self.phases.phases[index]
            source = task.source("train", phase.kind, index)
            return steps_per_epoch(source.rows_per_epoch, source.buckets, phase.batch_size)

        phases = self.phases.counted(per_epoch) if self.phases.in_epochs else self.phases
        if training.evaluations_per_epoch is not None:
            number = max(1, round(phases.num_epochs(per_epoch) * training.evaluations_per_epoch))
            training = dataclasses.replace(training, eval_every_steps=-(-phases.num_steps // number))
        if training.logs_per_evaluation is not None:
            every = max(1, training.eval_every_steps // training.logs_per_evaluation)
            training = dataclasses.replace(training, log_every_steps=every)
        return dataclasses.replace(self, phases=phases, training=training)

    def make_schedule(self) -> Schedule:
        return make_schedule(self.schedule, self.phases.num_steps)

    def jitted_step(self, task: Task, tx: optax.GradientTransformation, phase: Phase, state: TrainState) -> Any:
        """Return the train step of ``phase``, jitted. ``state``: one of shapes, with shardings."""
        how = self.micro_batches(phase), state.params, self.training.gradient_dtype
        train_step = make_train_step(task, tx, self.make_schedule(), self.seed, *how)
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
          UserError: the schedule is longer than the run, or the mesh does not divide the devices or a batch.
        """
        self.make_schedule()
        return self.make_mesh(devices)


class ProbeProtocol(Protocol):
    """Computes additional metrics at an evaluation from the current parameters, without changing them."""

    def due(self, step: int) -> bool:
        """Return whether the evaluation at ``step`` should run the probe."""

    def __call__(self, step: int, params: Any, between: Callable[[], None]) -> dict[str, float]:
        """Return the probe's metrics, or {} if it is not due. ``between`` is called between batches and may raise."""
        ...


def train_and_evaluate(
    task: Task,
    experiment: Experiment,
    workdir: str,
    observer: Observer,
    facts: Mapping[str, Any],
    start: Callable[[TrainState], TrainState] | None = None,
    given_frozen: Callable[[Any], Any] | None = None,
    probe: ProbeProtocol | None = None,
) -> dict[str, float]:
    """Train ``task`` from the newest checkpoint in ``workdir``, or from ``start(fresh state)``, to the last step.

    Args:
      facts: what is saved with every checkpoint besides the state: resolved config, fingerprints, versions.
      start: a function that replaces parameters of a fresh state, to start from another model. Not called on a resume.
      given_frozen: a function that replaces the frozen variables. It is also called on a resume, since no checkpoint
        holds frozen variables.
      probe: computes additional metrics at the evaluations for which it is due.

    Returns:
      The metrics of the last evaluation. If a selection is configured, the parameters of the best evaluation are saved
      in ``workdir/best``.
    """
    made = roll_back.recorded(distributed.first_says("roll backs", facts["run"]))
    while True:
        without = dataclasses.replace(experiment, phases=roll_back.without_windows(experiment.phases, made))
        ended = _train(task, without, workdir, observer, facts, start, given_frozen, probe, made)
        if not isinstance(ended, RollBack):
            return ended
        made, facts = (*made, ended), {**facts, "run": run_record.read_run(workdir)}


def _train(
    task: Task,
    experiment: Experiment,
    workdir: str,
    observer: Observer,
    facts: Mapping[str, Any],
    start: Callable[[TrainState], TrainState] | None,
    given_frozen: Callable[[Any], Any] | None,
    probe: ProbeProtocol | None,
    made: tuple[RollBack, ...],
) -> dict[str, float] | RollBack:
    """Train to the last step and return the metrics, or return a roll back after which training must start anew."""
    phases, mesh, tx = experiment.phases, experiment.make_mesh(), make_optimizer(experiment.optimizer)
    how, update = (task, tx, metric_names(task), phases.phases[0].batch_size), experiment.mesh.weight_update

    with observer.during("restoring"):
        state: Any = restore(workdir, abstract_fresh(*how, mesh, update)[0], observer.note)
        if resumed := state is not None:  # no fresh state beside it: a run that just fits must be able to resume
            frozen = initialise_frozen(task, experiment.seed, mesh, update)
        else:
            state, frozen = initialise(*how, experiment.seed, mesh, update)
            state = state if start is None else start(state)
        frozen = frozen if given_frozen is None else given_frozen(frozen)
    for line in unsplit(task, mesh, update, meshes.is_split(state.params)):
        observer.note(line)
    first_step = int(state.step)
    work, warmup = work_before(phases, task.flops_per_row), experiment.schedule.warmup(phases.num_steps)
    observer.begin(first_step, resumed, work, warmup)
    if made and made[-1].to == first_step:
        observer.alarm(first_step, roll_back.message(made[-1]))
    if first_step < phases.num_steps and distributed.is_first():
        facts = {**facts, "run": run_record.record_start(workdir, first_step if resumed else None, device_facts())}
    if len(phases.phases) > 1:
        observer.note(phases.described(experiment.evaluated_phase))

    with meshes.activations(mesh), watched(experiment.training.stall_seconds), Termination() as termination:
        trainer = _Trainer(
            task, experiment, mesh, tx, workdir, observer, facts, probe, made, termination, state, frozen
        )
        with trainer.profiler, trainer.checkpoints.ending_well():
            return trainer.train()


class _Trainer:
    """Runs the steps beginning with ``state``, and what happens between them: evaluations, the log, saves."""

    def __init__(
        self,
        task: Task,
        experiment: Experiment,
        mesh: Mesh,
        tx: optax.GradientTransformation,
        workdir: str,
        observer: Observer,
        facts: Mapping[str, Any],
        probe: ProbeProtocol | None,
        made: tuple[RollBack, ...],
        termination: Termination,
        state: TrainState,
        frozen: Any,
    ):
        self._task, self._experiment, self._mesh, self._workdir = task, experiment, mesh, workdir
        self._training, self._phases = experiment.training, experiment.phases
        self._observer, self._probe, self._made, self._termination = observer, probe, made, termination
        self._state, self._frozen = state, frozen
        self._done = self._saved = self._first_step = int(state.step)
        unsaved = state if self._done < self._phases.num_steps else None
        self.checkpoints = Checkpoints(workdir, experiment.checkpoints, first=unsaved)
        self.profiler = Profiler(experiment.profiled, workdir, observer, self._first_step)
        shapes, limits = abstract(state), (self._training.max_skipped_in_a_row, experiment.mesh.overlap)
        self._health = Health(task, self._phases, workdir, observer, self.checkpoints, facts, state, *limits)
        self._steps = Steps(lambda phase: experiment.jitted_step(task, tx, phase, shapes), observer)
        rows, how = self._training.eval_rows, (termination.check, observer.evaluated)
        self._evaluation = Evaluation(task, mesh, experiment.evaluated_phase, rows, *how)
        self._selection = Selection(experiment.selection, observer.evaluations(self._first_step))
        self._peak_flops = peak_rates.peak_flops(jax.devices()[0], task.dtype) * len(jax.devices())
        peak_rates.note_slow_bfloat16(jax.devices()[0], task.dtype, observer.note)

    def train(self) -> dict[str, float] | RollBack:
        """Return the last evaluation's metrics, or the roll back after which training must start anew."""
        first_step, num_steps, termination = self._first_step, self._phases.num_steps, self._termination
        owed = first_step == 0 or self._evaluates(first_step) and not logged(self._observer, first_step)
        result = self._evaluate() if distributed.agreed(int(owed)) else {}
        distributed.at(first_step, "reading")
        specs, config, share = self._task.batch_specs, self._experiment.loader, meshes.share_of(self._mesh)
        loader = Loader(self._task.source, self._phases, first_step, specs, config, share)
        window = Window(self._observer.training_seconds, loader.wait_seconds)
        for step, batch in termination.steps(loader) if not distributed.agreed(int(self._selection.exhausted)) else ():
            self._step(step.number, step.kind, batch)
            window.add(self._task.flops_per_row[step.kind] * len(step.rows))

            done = self._done
            last, evaluates = done == num_steps, self._evaluates(done)
            logs = done % self._training.log_every_steps == 0 or evaluates
            saves = done % self._experiment.save_every_steps == 0
            if logs or saves or done % LAST == 0:
                self._health.look(self._state)  # waits for the step
            if logs:
                spike = self._log(window, loader.wait_seconds)
                window = Window(self._observer.training_seconds, loader.wait_seconds)
                if spike and (back := self._rolled_back()):
                    return back
            if evaluates:
                with contextlib.suppress(Preempted):  # the resumed run repeats the evaluation
                    result = self._evaluate()
                last = last or bool(distributed.agreed(int(self._selection.exhausted)))
            leaves = termination.reached() or last
            if (saves and self._health.has_learned(done)) or leaves:
                self._save()
            if leaves:
                break
            distributed.at(done, "reading")
        self._finish()
        return result or self._evaluation.run(meshes.whole(self._state.params), self._frozen)

    def _evaluates(self, step: int) -> bool:
        return step % self._training.eval_every_steps == 0 or step == self._phases.num_steps

    def _step(self, step: int, kind: str, batch: Any) -> None:
        phase = self._phases.phase_of(step)
        if phase is not self._phases.phase_of(max(step - 1, self._first_step)):
            begins = f"{phase.kind} begins, {phase.batch_size:,} rows of {phase.max_length:,}"
            self._observer.note(f"step {step:,}: {begins}")
        self.profiler.before(step + 1, self._state)
        on_devices = meshes.to_devices(batch, self._mesh)
        self._state = self._steps.run(step, phase, kind, self._state, self._frozen, on_devices)
        self._done, self._termination.saves = step + 1, True
        self.profiler.after(step + 1, self._state)

    def _log(self, window: Window, wait_seconds: float) -> bool:
        """Log the means over ``window`` and set the sums to 0; return whether all processes must roll back."""
        means = means_of(self._task, jax.device_get(self._state.metrics))
        metrics = window.metrics(means, self._observer.training_seconds, wait_seconds, self._peak_flops)
        self._state = dataclasses.replace(self._state, metrics=zeros_like(self._state.metrics))
        phase = self._phases.phase_of(self._done - 1).kind if len(self._phases.phases) > 1 else ""
        spike = self._observer.train(self._done, phase, metrics)
        return self._training.on_spike == "roll_back" and bool(distributed.agreed(int(spike)))

    def _rolled_back(self) -> RollBack | None:
        """Roll back from the window that has just ended, and return the roll back; if none is possible, return None."""
        cadences = (self._training.log_every_steps, self._training.eval_every_steps)
        begun = max((self._done - 1) // every * every for every in cadences)
        self.checkpoints.wait()
        back = roll_back.planned(self._workdir, self._phases, self._done, begun, self._made)
        if not isinstance(back, RollBack):
            self._observer.note(f"no roll back: {back}")
            return None
        self.checkpoints.close()
        roll_back.perform(self._workdir, back, self._made)
        return back

    def _evaluate(self) -> dict[str, float]:
        """Evaluate and log. Raises ``Preempted``, and logs nothing, if the run is told to end during the evaluation."""
        step, params, observer = self._done, meshes.whole(self._state.params), self._observer
        jax.block_until_ready(self._state)
        with observer.during("evaluating"):
            metrics = self._evaluation.run(params, self._frozen)
        if self._probe is not None and self._probe.due(step):  # otherwise do not report the state "probing"
            with observer.during("probing"):
                metrics |= self._probe(step, params, self._termination.check)
        observer.evaluation(step, metrics)
        if distributed.agreed(int(self._selection.see(step, metrics))):
            with observer.during("saving"):
                self._health.check(self._state)
                save_best(self._workdir, step, self._state.params, self._health.facts)
        return metrics

    def _save(self) -> None:
        with self._observer.saving(self._done):
            self._health.check(self._state)  # waits for the step; the first call compiles, so it is inside of "saving"
            self.checkpoints.save(self._state, self._health.facts)
        self._saved = self._done

    def _finish(self) -> None:
        """Save the last step if it is not saved yet, and close the checkpoints. Raises ``Preempted`` if told to end."""
        if self._saved != self._done:  # told to end while a batch was waited for
            self._save()
        if self._selection.exhausted:
            metric = self._experiment.selection.metric
            self._observer.note(f"stopped: no better {metric} in the last evaluations")
        distributed.at(self._done, "finishing")
        with self._observer.during("saving"):
            self.checkpoints.wait()
        if self._termination.reached():
            raise self._termination.ending(f"step {self._done:,} is saved")
        self.checkpoints.close()
        distributed.at(self._phases.num_steps, "finishing")


def device_facts() -> dict[str, Any]:
    """Return what ``run.json`` says about the devices of this job, so that its step times can be compared."""
    device = jax.devices()[0]
    return {"platform": device.platform, "kind": device.device_kind, "count": jax.device_count()}


def logged(observer: Observer, step: int) -> bool:
    """Return whether the log has an evaluation at ``step``; an evaluation that a signal interrupted is not in it."""
    return any(record["step"] == step for record in observer.evaluations(step))


def work_before(phases: Phases, flops_per_row: Mapping[str, float]) -> Callable[[int], float]:
    """Return a function that maps a step to the FLOPs of all steps before it.

    The time left is estimated from these FLOPs, because steps of different phases take different times.
    """

    def work(step: int) -> float:
        total, start = 0.0, 0
        for phase in phases.phases:
            steps = min(max(step - start, 0), phase.num_steps)
            total += steps * phase.batch_size * flops_per_row[phase.kind]
            start += phase.num_steps
        return total

    return work
