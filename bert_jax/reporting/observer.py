"""Receives the reports of the training loop and passes them to the log, the progress line and the status file."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bert_jax.cluster import distributed, signals
from bert_jax.errors import Interrupted, Preempted, RepeatingError, UserError
from bert_jax.parts import catalogue
from bert_jax.reporting.alarms import Alarms
from bert_jax.reporting.loggers.base import Record
from bert_jax.reporting.measures import in_a_line, in_order, titles_in
from bert_jax.reporting.progress import ProgressLine
from bert_jax.reporting.report import write_report
from bert_jax.reporting.run_log import RunLog
from bert_jax.reporting.status import State, StatusFile
from bert_jax.storage import files, reading


class Observer:
    """Shows the reports of the training loop on the first process of a job; all others discard them."""

    def __init__(self, workdir: str, run: Mapping[str, Any], num_train_steps: int, loggers: tuple[str, ...]):
        """Open log, loggers, progress line and status file. ``run`` is the content of ``run.json``.

        Raises ``UserError`` for an unknown logger, or a logger whose package is missing.
        """
        self.workdir, self._shows = workdir, distributed.is_first()
        self._step, self._other_seconds = 0, 0.0
        if not self._shows:
            return
        outputs = [catalogue.find("reporting.loggers", name, having="Logger").Logger() for name in loggers]
        self._num_steps, self._private = num_train_steps, bool(run["config"].get("private"))
        self._tasks, self.titles = tuple(run["config"].get("tasks") or ()), titles_in(run)
        self.log = RunLog(self.workdir, outputs)
        self.log.start(run)
        self.progress = ProgressLine(num_train_steps, order=tuple(run.get("titles", ())))
        self.status = StatusFile(self.workdir)  # last: its thread writes from now on
        self.status.update(num_train_steps=num_train_steps)

    @property
    def training_seconds(self) -> float:
        """A clock that stands still inside ``during`` blocks."""
        return time.perf_counter() - self._other_seconds

    @contextlib.contextmanager
    def during(self, state: State) -> Iterator[None]:
        """Context manager: inside the block, the run does something other than steps, such as ``compiling``."""
        start = time.perf_counter()
        distributed.at(self._step, state)
        with self.showing(state):
            yield
        distributed.at(self._step, "training")
        self._other_seconds += time.perf_counter() - start

    @contextlib.contextmanager
    def showing(self, state: State) -> Iterator[None]:
        """Context manager: inside the block, the status shows ``state``.

        Work after the last step (``exporting``) uses this instead of ``during``.
        """
        if not self._shows:
            yield
            return
        # An evaluation reports its progress itself.
        with self.progress.outside(state, counted=state != "evaluating"), self.status.during(state):
            yield

    def state(self) -> dict[str, Any]:
        """Return what ``status.json`` would contain now; {} if this process writes none."""
        return self.status.content() if self._shows else {}

    def note(self, text: str) -> None:
        """Print a line for the user."""
        if self._shows:
            self.progress.note(text)

    def set_num_steps(self, num_train_steps: int) -> None:
        """Set the number of steps of the run, for a run that learns it after its start."""
        if self._shows:
            self._num_steps = self.progress.total_steps = num_train_steps
            self.status.update(num_train_steps=num_train_steps)

    def evaluations(self, until: int) -> list[Record]:
        """Return the evaluations that were logged at steps up to ``until``; [] on all processes but the first."""
        records = self.log.records() if self._shows else []
        return [record for record in records if record["split"] == "eval" and record["step"] <= until]

    def begin(
        self,
        step: int,
        resumed: bool,
        work: Callable[[int], float],
        warmup_steps: int = 0,
        saves_every: int | None = None,
    ) -> None:
        """Begin training at ``step``, and remove what was logged for later steps.

        Args:
          resumed: whether training resumes from a checkpoint; otherwise all that was logged is removed.
          work: a function step -> cost of all steps before it, in any unit; used to estimate the time left.
          saves_every: the steps between two saves, for ``status.json``.
        """
        self._step = step
        if not self._shows:
            return
        lost = self.log.cut_back(step if resumed else -1)
        self.status.move("train", "lost", lost)
        self.status.cut_back(step if resumed else -1)
        baselines = reading.read_object(files.as_path(self.workdir) / "baselines.json") or {}
        self._alarms = Alarms(self.log.records(), baselines, warmup_steps, self._num_steps)
        if resumed:
            self.note(f"resumed at step {step:,}")
        elif lost:
            self.note("the run that was begun here saved no step; it begins anew")
        self.progress.start(step, work)
        self.status.update(state="training", step=step, save_every_steps=saves_every)

    def train(self, step: int, phase: str, metrics: Mapping[str, float]) -> bool:
        """Report the steps since the last report, up to ``step``. Return whether their mean loss is a spike."""
        self._step = step
        if not self._shows:
            return False
        record = {**metrics, **({"phase": phase} if phase else {})}
        self.log.write(step, "train", record)
        self.progress.update(step, metrics, phase)
        self.status.move("train", "input_wait", metrics["input_wait_seconds"])
        self.status.update(step=step, eta_seconds=self.progress.eta_seconds)
        if spike := self._alarms.train(record):
            self.alarm(step, spike)
        return spike is not None

    def evaluating(self, done: int, rows: int) -> None:
        """Report that ``done`` of the ``rows`` of an evaluation are done."""
        if self._shows:
            self.progress.doing(f"evaluating {done:,} of {rows:,} rows")

    def evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Report the metrics of an evaluation."""
        if not self._shows:
            return
        self.log.write(step, "eval", metrics)
        for task in ("", *self._tasks):
            own = {name: x for name, x in in_order(metrics, self.titles).items() if self._task_of(name) == task}
            own = {name.removeprefix(f"{task}/"): x for name, x in own.items()}
            if own:
                self.note(f"step {step:,} held-out{task and f' {task}'}: {in_a_line(own)}")
        if text := self._alarms.evaluation(step, metrics):
            self.alarm(step, text)
        self._report()

    def _task_of(self, metric: str) -> str:
        """Return the name of the task that a metric belongs to; "" if the run has one task, or the metric is of all."""
        first = metric.partition("/")[0]
        return first if first in self._tasks else ""

    def _report(self) -> None:
        """Write the report of the run so far, if the disk takes it. An object store gets it only at the end."""
        start = time.perf_counter()
        if not files.is_remote(self.workdir):
            with contextlib.suppress(UserError, OSError):
                write_report(self.workdir, self.status.content())
        self._other_seconds += time.perf_counter() - start

    def alarm(self, step: int, text: str) -> None:
        """Report something that a person should look at; the run goes on."""
        if self._shows:
            self.note(f"alarm at step {step:,}: {text}")
            self.status.alarm(step, text)

    @contextlib.contextmanager
    def saving(self, step: int) -> Iterator[None]:
        """Context manager around a save. The log is written before the save, so no checkpoint is newer than the log."""
        with self.during("saving"):
            if self._shows:
                self.log.flush()
            yield
        if self._shows:
            self.status.saved(step)

    @contextlib.contextmanager
    def to_the_end(self) -> Iterator[None]:
        """Context manager around the whole run, which records in the status how the run ended, whatever the reason.

        The block includes training, export and report; only a run that gets to its end counts as finished.
        """
        if not self._shows:
            yield
            return
        try:
            with signals.before_the_end(lambda: self.status.end("interrupted")):
                yield
        except (KeyboardInterrupt, Interrupted):
            self._end("interrupted")
            raise
        except Preempted:
            self._end("preempted")
            raise
        except BaseException as error:
            self._end("failed", error)
            raise
        self._end("finished")

    def _end(self, state: str, error: BaseException | None = None) -> None:
        self.progress.finish()
        self.log.close()
        kind = type(error).__name__
        message = str(error) if isinstance(error, UserError) else f"{kind}: {error}"  # a bug's message needs its type
        # A private run records only the type, because the message may name files of the corpus.
        text = (kind if self._private else message.splitlines()[0]) if error else None
        self.status.end(state, text, resumable=not isinstance(error, RepeatingError))
