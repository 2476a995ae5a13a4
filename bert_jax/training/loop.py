"""The one loop: every objective and every downstream task is trained here."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from bert_jax.checkpoints.leaves import listed
from bert_jax.checkpoints.restoring import newest_verified, restore, saved_steps
from bert_jax.checkpoints.saving import CheckpointConfig, Checkpoints, save_best
from bert_jax.cluster import distributed
from bert_jax.cluster.termination import Termination
from bert_jax.configuration import check_fields, choose
from bert_jax.errors import Preempted, RepeatingError
from bert_jax.rows.loader import Loader, LoaderConfig
from bert_jax.rows.phases import Phase, Phases
from bert_jax.task import Task
from bert_jax.training import hardware
from bert_jax.training import mesh as meshes
from bert_jax.training import run as runs
from bert_jax.training.evaluation import Evaluation
from bert_jax.training.mesh import MeshConfig
from bert_jax.training.observer import Observer
from bert_jax.training.optimizers import OptimizerConfig, make_optimizer
from bert_jax.training.schedules import Schedule, ScheduleConfig, make_schedule
from bert_jax.training.selection import Selection, SelectionConfig
from bert_jax.training.state import TrainState, abstract_fresh, fresh_leaves, initialise, initialise_frozen
from bert_jax.training.step import jit_train_step, make_train_step, metric_names


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """Cadence and layout of a run. None of it changes what is learned."""

    log_every_steps: int = 100
    eval_every_steps: int = 1000
    eval_rows: int = 2048  # held-out rows of an evaluation, the same each time
    eval_phase: str | None = None  # the phase whose row length they have; None: the last
    micro_batches: int = 1  # gradient accumulation: parts that a batch is computed in
    loggers: tuple[str, ...] = ("tensorboard",)

    def __post_init__(self) -> None:
        names = ("log_every_steps", "eval_every_steps", "eval_rows", "micro_batches")
        check_fields(self, "config.training", "at least 1 is needed", *names, sound=lambda value: value >= 1)


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
    observer.begin(first_step, resumed=resumed, work=work_before(phases, task.flops_per_row))
    if resumed and first_step < phases.num_steps and distributed.is_first():
        facts = {**facts, "run": runs.record_restart(workdir, first_step)}
    if len(phases.phases) > 1:
        observer.note(describe_phases(phases, experiment.evaluated_phase))

    with meshes.activations(mesh), Termination() as termination:
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
                    save_best(workdir, step, state.params, facts)
            return metrics

        def save() -> None:
            jax.block_until_ready(state)
            with observer.saving(done):
                checkpoints.save(state, facts)

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
            window.add(task.flops_per_row[dealt.kind] * len(dealt.rows))

            done = step + 1
            last = done == phases.num_steps
            evaluates = evaluates_at(done)
            if done % training.log_every_steps == 0 or evaluates:
                means = task.summary(jax.device_get(state.metrics))  # waits for the step
                metrics = window.metrics(means, observer.training_seconds, loader.wait_seconds, peak_flops)
                if broken := not_finite(metrics):
                    with observer.during("saving"):
                        checkpoints.wait()
                    read_before = (done - 1) // training.log_every_steps * training.log_every_steps
                    before = [saved for saved in saved_steps(workdir) if saved <= read_before]
                    raise diverged(broken, done, newest_verified(workdir, before))
                state = dataclasses.replace(state, metrics=zeros_like(state.metrics))
                observer.train(done, phase.kind if len(phases.phases) > 1 else "", metrics)
                window = Window(observer.training_seconds, loader.wait_seconds)
            if evaluates:
                with contextlib.suppress(Preempted):  # made up by the run that goes on
                    result = evaluate(done)
                last = last or bool(distributed.agreed(int(selection.exhausted)))
            leaves = termination.reached() or last
            if done % experiment.checkpoints.every_steps == 0 or leaves:
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


class Steps:
    """Runs the step of each kind of batch, compiled when the first comes.

    The host goes on while the devices work, but no further than a second or two of steps: then where it stands is about
    where they stand, and a stall is noticed, a long queue is not taken for one.
    """

    AHEAD_SECONDS, MOST = 1.0, 64  # from one wait for the devices to the next; steps

    def __init__(self, train_step: Any, observer: Observer):
        self._train_step, self._observer = train_step, observer
        self._compiled: dict[str, Any] = {}
        self._every, self._since = 1, 0  # steps from wait to wait, and since the last
        self._mark: jax.Array | None = None  # is there once the devices are where the host was at the last wait
        self._marked = 0.0

    def run(self, step: int, kind: str, state: TrainState, frozen: Any, batch: Any) -> TrainState:
        """The state after ``step``, which may be computed still. ``state`` is donated."""
        first = kind not in self._compiled
        if first:
            with self._observer.during("compiling"):
                self._compiled[kind] = self._train_step.lower(state, frozen, batch).compile()
        distributed.at(step, "first step" if first else "training")  # the first sets up what devices talk through
        state = self._compiled[kind](state, frozen, batch)
        self._since += 1
        if first:
            jax.block_until_ready(state)
            self._every, self._since, self._mark, self._marked = 1, 0, None, time.monotonic()
        elif self._since >= self._every:
            self._wait(state)
        return state

    def _wait(self, state: TrainState) -> None:
        """Until the devices are where the host was at the last wait."""
        if self._mark is not None:
            self._mark.block_until_ready()
        now = time.monotonic()
        if now - self._marked < self.AHEAD_SECONDS / 2:
            self._every = min(2 * self._every, self.MOST)
        elif now - self._marked > 2 * self.AHEAD_SECONDS:
            self._every = max(self._every // 2, 1)
        self._mark = jnp.copy(state.step.addressable_data(0))  # the state itself is donated to the next step
        self._since, self._marked = 0, now


@dataclasses.dataclass
class Window:
    """The steps since metrics were last read."""

    training_seconds: float
    wait_seconds: float
    steps: int = 0
    flops: float = 0.0

    def add(self, flops: float) -> None:
        """A step."""
        self.steps += 1
        self.flops += flops

    def metrics(
        self, means: dict[str, float], training_seconds: float, wait_seconds: float, peak_flops: float
    ) -> dict[str, float]:
        """Means over the window, with the rates of its steps: ``tokens`` becomes ``tokens_per_second``."""
        seconds = max(training_seconds - self.training_seconds, 1e-9)
        return means | {
            "tokens_per_second": means.pop("tokens") * self.steps / seconds,
            "mfu": self.flops / seconds / peak_flops,
            "input_wait_seconds": wait_seconds - self.wait_seconds,
        }


def zeros_like(metrics: Any) -> Any:
    return jax.tree.map(jnp.zeros_like, metrics)


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


def not_finite(metrics: Mapping[str, float]) -> list[str]:
    """Names of the metrics that are NaN or infinite."""
    return [name for name, value in metrics.items() if not math.isfinite(value)]


def diverged(broken: list[str], step: int, sound: int | None) -> RepeatingError:
    """The error that stops a run before more of a broken state is saved.

    Args:
      sound: the newest verified step from before the metrics were last found finite.
    """
    saved, goes_on = "there is no verified step from before", ""
    if sound is not None:
        saved = f"step {sound:,} is the newest verified checkpoint from before"
        goes_on = f", if you like from --init=WORKDIR@{sound}"
    return RepeatingError(
        f"{', '.join(broken)} not finite at step {step:,}; {saved}. The same command would end the same way: lower "
        f"the learning rate or lengthen the warm-up, in a new --workdir{goes_on}"
    )
