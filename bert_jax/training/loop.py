"""The one loop: every objective and every downstream task is trained here."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

import jax
from jax.sharding import Mesh

from bert_jax.checkpoints.leaves import listed
from bert_jax.checkpoints.restoring import restore
from bert_jax.checkpoints.saving import CheckpointConfig, Checkpoints, save_best
from bert_jax.cluster import distributed
from bert_jax.cluster.termination import Termination
from bert_jax.cluster.watchdog import Watchdog
from bert_jax.configuration import check_fields, choose
from bert_jax.errors import Preempted
from bert_jax.rows.loader import Loader, LoaderConfig
from bert_jax.rows.phases import Phase, Phases
from bert_jax.task import Task
from bert_jax.training import hardware, roll_back
from bert_jax.training import mesh as meshes
from bert_jax.training import run as runs
from bert_jax.training.evaluation import Evaluation
from bert_jax.training.health import Health
from bert_jax.training.mesh import MeshConfig
from bert_jax.training.observer import Observer
from bert_jax.training.optimizers import OptimizerConfig, make_optimizer
from bert_jax.training.roll_back import RollBack
from bert_jax.training.schedules import Schedule, ScheduleConfig, make_schedule
from bert_jax.training.selection import Selection, SelectionConfig
from bert_jax.training.state import LAST, TrainState, abstract_fresh, fresh_leaves, initialise, initialise_frozen
from bert_jax.training.step import jit_train_step, make_train_step, metric_names
from bert_jax.training.stepping import Steps, Window, means_of, zeros_like


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """Cadence and layout of a run. None of it changes what is learned, but for ``on_spike``."""

    log_every_steps: int = 100
    eval_every_steps: int = 1000
    eval_rows: int = 2048  # held-out rows of an evaluation, the same each time
    eval_phase: str | None = None  # the phase whose row length they have; None: the last
    micro_batches: int = 1  # gradient accumulation: parts that a batch is computed in
    max_skipped_in_a_row: int = 10  # steps whose loss or gradient is not finite; so many end the run
    on_spike: Literal["warn", "roll_back"] = "warn"  # what follows a window whose loss leaps
    stall_seconds: float = 900.0  # that a step may take at least; of several processes --heartbeat_seconds says it
    loggers: tuple[str, ...] = ("tensorboard",)

    def __post_init__(self) -> None:
        names = ("log_every_steps", "eval_every_steps", "eval_rows", "micro_batches", "max_skipped_in_a_row")
        check_fields(self, "config.training", "at least 1 is needed", *names, sound=lambda value: value >= 1)
        check_fields(self, "config.training", "more than 0 is needed", "stall_seconds", sound=lambda value: value > 0)


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Everything that the loop is handed beside the task: typed, checked, and made before anything slow."""

    seed: int
    phases: Phases
    optimizer: OptimizerConfig
    schedule: ScheduleConfig
    mesh: MeshConfig
    training: TrainingConfig
    checkpoints: CheckpointConfig
    loader: LoaderConfig
    selection: SelectionConfig = SelectionConfig()
    batch_key: str = "config.phases.{}.batch_size"  # where a recipe says how many rows a phase's batch has

    @property
    def evaluated_phase(self) -> Phase:
        """The phase whose rows every evaluation reads."""
        by_name = {phase.kind: phase for phase in self.phases.phases}
        name = self.training.eval_phase
        return self.phases.phases[-1] if name is None else choose("phase in config.training.eval_phase", name, by_name)

    def make_schedule(self) -> Schedule:
        return make_schedule(self.schedule, self.phases.num_steps)

    def make_mesh(self, devices: list[jax.Device] | None = None) -> Mesh:
        """The mesh of ``devices`` (None: those there are), on which every phase's batch fits."""
        mesh = meshes.make_mesh(self.mesh, devices)
        for phase in self.phases.phases:
            where = self.batch_key.format(phase.kind)
            meshes.check_batch(mesh, phase.batch_size, self.training.micro_batches, where)
        return mesh

    def check(self, devices: list[jax.Device] | None = None) -> None:
        """Whatever can be found wrong before a text is read, on ``devices`` (None: those there are).

        Raises:
          UserError: a schedule longer than the run, an unknown phase, a mesh that divides not the devices or a batch.
        """
        self.make_schedule()
        self.make_mesh(devices)
        assert self.evaluated_phase


class ProbeProtocol(Protocol):
    """More metrics of an evaluation, from parameters that it leaves as they are."""

    def due(self, step: int) -> bool:
        """Whether the evaluation at ``step`` is probed."""

    def __call__(self, step: int, params: Any, between: Callable[[], None]) -> dict[str, float]:
        """Of no metrics where it is not due. ``between`` is called between batches and may raise."""
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
      facts: saved with every checkpoint (resolved config, fingerprints, versions).
      start: replaces parameters of a fresh state, to go on from another model. Not called on a resume.
      given_frozen: replaces the frozen variables, which no checkpoint holds; at a resume too.
      probe: of the evaluations at which it is due.

    Returns:
      The last evaluation's metrics. With a selection, the parameters of the best one lie in ``workdir/best``.
    """
    made = roll_back.recorded(distributed.first_says("roll backs", facts["run"]))
    while True:
        without = dataclasses.replace(experiment, phases=roll_back.without_windows(experiment.phases, made))
        ended = _train(task, without, workdir, observer, facts, start, given_frozen, probe, made)
        if not isinstance(ended, RollBack):
            return ended
        made, facts = (*made, ended), {**facts, "run": runs.read_run(workdir)}


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
    """``train_and_evaluate`` to the end, or to a spike from which it is to go on anew."""
    training, phases = experiment.training, experiment.phases
    mesh, schedule = experiment.make_mesh(), experiment.make_schedule()
    tx = make_optimizer(experiment.optimizer)
    how = (task, tx, metric_names(task), phases.phases[0].batch_size)

    def fresh(names: list[str]) -> Mapping[str, Any]:
        observer.note(f"saved by an earlier version, without {listed(names)}: fresh")
        return fresh_leaves(*how, experiment.seed, mesh, names)

    def evaluates_at(step: int) -> bool:
        return step % training.eval_every_steps == 0 or step == phases.num_steps

    with observer.during("restoring"):
        state: Any = restore(workdir, abstract_fresh(*how, mesh)[0], observer.note, fresh)
        if resumed := state is not None:  # no fresh one is made beside it: a run that just fits has to resume too
            frozen = initialise_frozen(task, experiment.seed, mesh)
        else:
            state, frozen = initialise(*how, experiment.seed, mesh)
            state = state if start is None else start(state)
        frozen = frozen if given_frozen is None else given_frozen(frozen)
    checkpoints = Checkpoints(workdir, experiment.checkpoints)
    first_step = int(state.step)
    work, warmup = work_before(phases, task.flops_per_row), experiment.schedule.warmup_steps
    observer.begin(first_step, resumed, work, warmup)
    if made and made[-1].to == first_step:
        observer.alarm(first_step, roll_back.told(made[-1]))
    if resumed and first_step < phases.num_steps and distributed.is_first():
        facts = {**facts, "run": runs.record_restart(workdir, first_step)}
    most = training.max_skipped_in_a_row
    health = Health(task, phases, workdir, observer, checkpoints, facts, state, most)
    if len(phases.phases) > 1:
        observer.note(describe_phases(phases, experiment.evaluated_phase))

    with meshes.activations(mesh), Watchdog(training.stall_seconds), Termination() as termination:
        train_step = jit_train_step(make_train_step(task, tx, schedule, experiment.seed, training.micro_batches), state)
        evaluation = Evaluation(task, mesh, experiment.evaluated_phase, training.eval_rows, termination.check)
        selection = Selection(experiment.selection, observer.evaluations(first_step))
        steps = Steps(train_step, observer)

        def evaluate(step: int) -> dict[str, float]:
            """Raises ``Preempted`` when told to end meanwhile; then nothing of it is logged."""
            jax.block_until_ready(state)
            with observer.during("evaluating"):
                metrics = evaluation.run(state.params, frozen)
            if probe is not None and probe.due(step):  # a probe of no time would make the next one a stall
                with observer.during("probing"):
                    metrics |= probe(step, state.params, termination.check)
            observer.evaluation(step, metrics)
            if distributed.agreed(int(selection.see(step, metrics))):
                with observer.during("saving"):
                    health.check(state)
                    save_best(workdir, step, state.params, health.facts)
            return metrics

        def save() -> None:
            with observer.saving(done):
                health.check(state)  # waits for the step; compiles the first time, which is no stall
                checkpoints.save(state, health.facts)

        owed = first_step == 0 or evaluates_at(first_step) and not logged(observer, first_step)
        result = evaluate(first_step) if distributed.agreed(int(owed)) else {}
        peak_flops = hardware.peak_flops(jax.devices()[0]) * len(jax.devices())
        distributed.at(first_step, "reading")
        loader = Loader(
            task.source,
            phases,
            first_step,
            task.batch_specs,
            experiment.loader,
            meshes.share_of(mesh),
        )
        window = Window(observer.training_seconds, loader.wait_seconds)
        done = saved = first_step
        for step, batch in termination.steps(loader) if not distributed.agreed(int(selection.exhausted)) else ():
            phase, dealt = phases.phase_of(step), loader.step(step)
            if phase is not phases.phase_of(max(step - 1, first_step)):
                observer.note(f"step {step:,}: {phase.kind} begins, {phase.batch_size:,} rows of {phase.max_length:,}")
            on_devices = meshes.to_devices(batch, mesh)
            state = steps.run(step, dealt.kind, state, frozen, on_devices)
            termination.saves = True
            window.add(task.flops_per_row[dealt.kind] * len(dealt.rows))

            done = step + 1
            last = done == phases.num_steps
            evaluates = evaluates_at(done)
            logs = done % training.log_every_steps == 0 or evaluates
            saves = done % experiment.checkpoints.every_steps == 0
            if logs or saves or done % LAST == 0:
                health.look(state)  # waits for the step
            if logs:
                means = means_of(task, jax.device_get(state.metrics))
                metrics = window.metrics(means, observer.training_seconds, loader.wait_seconds, peak_flops)
                state = dataclasses.replace(state, metrics=zeros_like(state.metrics))
                spike = observer.train(done, phase.kind if len(phases.phases) > 1 else "", metrics)
                window = Window(observer.training_seconds, loader.wait_seconds)
                if training.on_spike == "roll_back" and distributed.agreed(int(spike)):
                    begun = max(
                        step // every * every for every in (training.log_every_steps, training.eval_every_steps)
                    )
                    checkpoints.wait()
                    back = roll_back.planned(workdir, phases, done, begun, made)
                    if isinstance(back, RollBack):
                        checkpoints.close()
                        roll_back.perform(workdir, back, made)
                        return back
                    observer.note(f"no roll back: {back}")
            if evaluates:
                with contextlib.suppress(Preempted):  # the run that goes on makes it up
                    result = evaluate(done)
                last = last or bool(distributed.agreed(int(selection.exhausted)))
            leaves = termination.reached() or last
            if (saves and health.has_learned(done)) or leaves:
                save()
                saved = done
            if leaves:
                break
            distributed.at(done, "reading")
        if saved != done:  # told to end while a batch was waited for
            save()
        if selection.exhausted:
            observer.note(f"stopped: no better {experiment.selection.metric} in the last evaluations")
        distributed.at(done, "finishing")
        with observer.during("saving"):
            checkpoints.wait()
        if termination.reached():
            raise termination.ending(f"step {done:,} is saved")
    checkpoints.close()
    distributed.at(phases.num_steps, "finishing")
    return result or evaluation.run(state.params, frozen)


def logged(observer: Observer, step: int) -> bool:
    """Whether an evaluation at ``step`` was made: one that a signal broke off was not."""
    return any(record["step"] == step for record in observer.evaluations(step))


def work_before(phases: Phases, flops_per_row: Mapping[str, float]) -> Callable[[int], float]:
    """The FLOPs of all steps before a given one: what is left of a run is judged by it, for phases differ in cost."""

    def work(step: int) -> float:
        total, start = 0.0, 0
        for phase in phases.phases:
            steps = min(max(step - start, 0), phase.num_steps)
            total += steps * phase.batch_size * flops_per_row[phase.kind]
            start += phase.num_steps
        return total

    return work


def describe_phases(phases: Phases, evaluated: Phase) -> str:
    """One line: the shape of each phase, and of the held-out rows, whose loss compares with that of like rows alone."""
    parts = (f"{p.kind} {p.num_steps:,} steps of {p.batch_size:,} x {p.max_length:,}" for p in phases.phases)
    return f"phases: {', '.join(parts)}; held-out rows are of {evaluated.max_length:,} throughout"
