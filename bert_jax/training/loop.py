"""The training loop, the same for every objective and task: when a run logs, evaluates, saves and stops."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from bert_jax.checkpoints.restoring import restore, saved_steps
from bert_jax.checkpoints.saving import Checkpoints, save_best
from bert_jax.cluster import distributed
from bert_jax.cluster.termination import Termination
from bert_jax.cluster.watchdog import watch_process
from bert_jax.errors import Preempted
from bert_jax.reporting.observer import Observer
from bert_jax.rows.loader import Loader
from bert_jax.rows.phases import Phases
from bert_jax.task import Task
from bert_jax.training import mesh as meshes
from bert_jax.training import roll_back
from bert_jax.training.evaluation import Evaluation
from bert_jax.training.experiment import Experiment
from bert_jax.training.health import Health
from bert_jax.training.profiling import Profiler
from bert_jax.training.roll_back import RollBack
from bert_jax.training.selection import Selection
from bert_jax.training.sharded_update import unsplit
from bert_jax.training.state import LAST, TrainState, abstract
from bert_jax.training.stepping import Steps, Window, means_of
from bert_jax.workdir import run_record


class _EvaluationsProtocol(Protocol):
    """Computes additional metrics at an evaluation from the current parameters, without changing them."""

    def due(self, step: int) -> list[str]:
        """Return the names of the evaluations that run at ``step``."""

    def __call__(self, step: int, params: Any, frozen: Any, between: Callable[[], None]) -> dict[str, float]:
        """Return the metrics of the evaluations that are due. ``between`` is called between batches and may raise."""
        ...


@dataclasses.dataclass(frozen=True)
class Run:
    """A run: its task and settings, its start, and the observer that shows it.

    Attributes:
      observer: it also names the workdir.
      facts: they are saved with every checkpoint besides the state: resolved config, fingerprints, versions.
      peak_flops: the highest FLOP/s of matrix products on all devices together; ``mfu`` is a share of it.
      start: a function that replaces parameters of a fresh state, to start from another model. Not called on a resume.
      given_frozen: a function that replaces the frozen variables. It is also called on a resume, since no checkpoint
        holds frozen variables.
      evaluations: compute additional metrics when the held-out rows are evaluated.
    """

    task: Task
    experiment: Experiment
    observer: Observer
    facts: Mapping[str, Any]
    peak_flops: float
    start: Callable[[TrainState], TrainState] | None = None
    given_frozen: Callable[[Any], Any] | None = None
    evaluations: _EvaluationsProtocol | None = None


def train_and_evaluate(run: Run) -> dict[str, float]:
    """Train from the newest checkpoint in the workdir, or from ``run.start(fresh state)``, to the last step.

    Returns:
      The metrics of the last evaluation. If a selection is configured, the parameters of the best evaluation are saved
      in ``workdir/best``.
    """
    phases, facts = run.experiment.phases, run.facts
    roll_backs = roll_back.of_run(distributed.first_says("roll backs", facts["run"]))
    while True:
        experiment = dataclasses.replace(run.experiment, phases=roll_back.without_windows(phases, roll_backs))
        end = _train(dataclasses.replace(run, experiment=experiment, facts=facts), roll_backs)
        if not isinstance(end, RollBack):
            return end
        roll_backs, facts = (*roll_backs, end), {**facts, "run": run_record.read_run(run.observer.workdir)}


def _train(run: Run, roll_backs: tuple[RollBack, ...]) -> dict[str, float] | RollBack:
    """Train to the last step and return the metrics, or return a roll back after which training must start anew."""
    task, experiment, observer, workdir = run.task, run.experiment, run.observer, run.observer.workdir
    phases, mesh = experiment.phases, experiment.make_mesh()
    initial = experiment.initial_state(task, mesh)
    with observer.during("restoring" if saved_steps(workdir) else "starting"):
        state: Any = restore(workdir, initial.shapes[0], observer.note)
        if resumed := state is not None:  # no fresh state beside it: a run that just fits must be able to resume
            frozen = initial.make_frozen(experiment.seed)
        else:
            state, frozen = initial.make(experiment.seed)
            state = state if run.start is None else run.start(state)
        frozen = frozen if run.given_frozen is None else run.given_frozen(frozen)
    for line in unsplit(task, mesh, experiment.mesh.weight_update, meshes.is_split(state.params)):
        observer.note(line)
    first_step = int(state.step)
    (schedule, num_steps), *_ = experiment.schedules.values()
    work, warmup = _work_before(phases, task.flops_per_row), schedule.warmup(num_steps)
    observer.begin(first_step, resumed, work, warmup, experiment.save_every_steps)
    if roll_backs and roll_backs[-1].to == first_step:
        observer.alarm(first_step, roll_backs[-1].message())
    if first_step < phases.num_steps and distributed.is_first():
        device = jax.devices()[0]
        # With these, the step times of two runs can be compared.
        devices = {"platform": device.platform, "kind": device.device_kind, "count": jax.device_count()}
        record = run_record.record_start(workdir, first_step if resumed else None, devices)
        run = dataclasses.replace(run, facts={**run.facts, "run": record})
    if len(phases.phases) > 1:
        observer.note(phases.describe(experiment.evaluated_phase))

    with meshes.activations(mesh), watch_process(experiment.training.stall_seconds), Termination() as termination:
        trainer = _Trainer(run, roll_backs, mesh, termination, state, frozen)
        with trainer.profiler, trainer.checkpoints.ending_well():
            return trainer.train(fresh=not resumed)


class _Trainer:
    """Runs the steps beginning with ``state``, and what happens between them: evaluations, the log, saves."""

    def __init__(
        self,
        run: Run,
        roll_backs: tuple[RollBack, ...],
        mesh: Mesh,
        termination: Termination,
        state: TrainState,
        frozen: Any,
    ):
        task, experiment, observer = run.task, run.experiment, run.observer
        self._run, self._task, self._experiment, self._observer = run, task, experiment, observer
        self._training, self._phases = experiment.training, experiment.phases
        self._roll_backs, self._mesh, self._termination = roll_backs, mesh, termination
        self._state, self._frozen = state, frozen
        self._done = self._saved = self._first_step = int(state.step)
        unsaved = state if self._done < self._phases.num_steps else None
        self._kept = frozenset(experiment.revisions.values())
        self.checkpoints = Checkpoints(observer.workdir, experiment.checkpoints, first=unsaved, at=self._kept)
        self.profiler = Profiler(experiment.profiled, observer, self._first_step)
        shapes = abstract(state)
        self._health = Health(task, experiment, observer, self.checkpoints, run.facts, state)
        self._steps = Steps(lambda kind, phase: experiment.jitted_step(task, kind, phase, shapes), observer)
        rows, how = self._training.eval_rows, (termination.check, observer.evaluating)
        self._evaluation = Evaluation(task, mesh, experiment.evaluated_phase, rows, *how)
        self._selection = Selection(experiment.selection, observer.evaluations(self._first_step))

    def train(self, fresh: bool) -> dict[str, float] | RollBack:
        """Return the last evaluation's metrics, or the roll back after which training must start anew.

        ``fresh``: whether no step is saved yet.
        """
        first_step, num_steps, termination = self._first_step, self._phases.num_steps, self._termination
        if fresh and 0 in self._kept:
            self._save()
        evaluates = first_step == 0 or self._evaluates(first_step)
        # The log lacks an evaluation that a signal interrupted.
        logged = any(record["step"] == first_step for record in self._observer.evaluations(first_step))
        needs_evaluation = evaluates and not logged
        result = self._evaluate() if distributed.first_says("evaluates", needs_evaluation) else {}
        distributed.at(first_step, "reading")
        specs, config, share = self._task.batch_specs, self._experiment.loader, meshes.share_of(self._mesh)
        loader = Loader(self._task.source, self._phases, first_step, specs, config, share)
        window = Window(self._observer.training_seconds, loader.wait_seconds)
        for step, batch in () if self._exhausted() else termination.steps(loader):
            self._step(step.number, step.kind, batch)
            window.add(self._task.flops_per_row[step.kind] * len(step.rows))

            done = self._done
            last, evaluates = done == num_steps, self._evaluates(done)
            logs = done % self._training.log_every_steps == 0 or evaluates
            kept = done in self._kept
            saves = kept or done % self._experiment.save_every_steps == 0
            if logs or saves or done % LAST == 0:
                self._health.look(self._state)  # waits for the step
            if logs:
                spike = self._log(window, loader.wait_seconds)
                window = Window(self._observer.training_seconds, loader.wait_seconds)
                if spike and (back := self._roll_back()):
                    return back
            if evaluates:
                with contextlib.suppress(Preempted):  # the resumed run repeats the evaluation
                    result = self._evaluate()
                last = last or self._exhausted()
            leaves = termination.must_end() or last
            if kept or (saves and self._health.has_learned(done)) or leaves:
                self._save()
            if leaves:
                break
            distributed.at(done, "reading")
        self._finish()
        params, at_end = meshes.gathered(self._state.params), self._phases.phases[-1].kind
        return result or self._evaluation.run(params, self._frozen, at_end)

    def _exhausted(self) -> bool:
        return bool(distributed.first_says("exhausted", self._selection.exhausted))

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
        metrics = window.metrics(means, self._observer.training_seconds, wait_seconds, self._run.peak_flops)
        zeros = jax.tree.map(jnp.zeros_like, self._state.metrics)
        self._state = dataclasses.replace(self._state, metrics=zeros)
        phase = self._phases.phase_of(self._done - 1).kind if len(self._phases.phases) > 1 else ""
        spike = self._observer.train(self._done, phase, metrics)
        return self._training.on_spike == "roll_back" and bool(distributed.first_says("spike", spike))

    def _roll_back(self) -> RollBack | None:
        """Roll back from the window that has just ended, and return the roll back; if none is possible, return None."""
        cadences = (self._training.log_every_steps, self._training.eval_every_steps)
        start = max((self._done - 1) // every * every for every in cadences)
        self.checkpoints.wait()
        workdir = self._observer.workdir
        back = roll_back.plan(workdir, self._phases, self._done, start, self._roll_backs)
        if not isinstance(back, RollBack):
            self._observer.note(f"no roll back: {back}")
            return None
        self.checkpoints.close()
        roll_back.perform(workdir, back, self._roll_backs)
        return back

    def _evaluate(self) -> dict[str, float]:
        """Evaluate and log. Raises ``Preempted``, and logs nothing, if the run is told to end during the evaluation."""
        step, params, observer = self._done, meshes.gathered(self._state.params), self._observer
        jax.block_until_ready(self._state)
        others, found = self._run.evaluations, dict[str, float]()
        if others and others.due(step):  # before the held-out rows, so that a mistake in one is found early
            with observer.during("scoring"):
                found = others(step, params, self._frozen, self._termination.check)
        with observer.during("evaluating"):
            now = self._phases.phase_of(max(step - 1, 0)).kind
            metrics = self._evaluation.run(params, self._frozen, now) | found
        observer.evaluation(step, metrics)
        if distributed.first_says("best", self._selection.see(step, metrics)):
            with observer.during("saving"):
                self._health.check(self._state)
                save_best(observer.workdir, step, self._state.params, self._health.facts)
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
        if self._termination.must_end():
            raise self._termination.ending(f"step {self._done:,} is saved")
        self.checkpoints.close()
        distributed.at(self._phases.num_steps, "finishing")


def _work_before(phases: Phases, flops_per_row: Mapping[str, float]) -> Callable[[int], float]:
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
