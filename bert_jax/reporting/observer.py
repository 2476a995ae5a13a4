"""Reports what the training loop does, in one place: to the metrics log, the progress line and the status file."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bert_jax import catalogue
from bert_jax.cluster import distributed, signals
from bert_jax.errors import Interrupted, Preempted, RepeatingError, UserError
from bert_jax.reporting.alarms import Alarms
from bert_jax.reporting.formats import decimal
from bert_jax.reporting.loggers.base import Record, RunFacts
from bert_jax.reporting.progress import Progress
from bert_jax.reporting.run_log import FILE, RunLog, read_records
from bert_jax.reporting.run_record import write_run
from bert_jax.reporting.status import Ended, Running, StatusFile
from bert_jax.storage import files, reading


class Observer:
    """Receives what the loop reports. This class reports it to nobody: all processes of a job but the first have it.

    ``training_seconds`` is a clock that runs only during training steps.
    """

    def __init__(self, workdir: str):
        self._workdir = workdir
        self._step, self._other_seconds = 0, 0.0

    @property
    def training_seconds(self) -> float:
        return time.perf_counter() - self._other_seconds

    @contextlib.contextmanager
    def during(self, state: Running) -> Iterator[None]:
        """Mark the block as something else than steps: ``compiling``, ``evaluating``, ``saving``."""
        start = time.perf_counter()
        distributed.at(self._step, state)
        with self.shown(state):
            yield
        distributed.at(self._step, "training")
        self._other_seconds += time.perf_counter() - start

    @contextlib.contextmanager
    def shown(self, state: Running) -> Iterator[None]:
        """Mark the block as work after the last step: ``exporting``, ``reporting``."""
        del state
        yield

    def state(self) -> dict[str, Any]:
        """Return the content of ``status.json``."""
        return {}

    def note(self, text: str) -> None:
        """Print a line."""
        del text

    def evaluations(self, until: int) -> list[Record]:
        """Return the evaluations that were logged up to the step ``until``."""
        path = files.as_path(self._workdir) / FILE
        records = read_records(path) if path.exists() else []
        return [record for record in records if record["split"] == "eval" and record["step"] <= until]

    def begin(self, step: int, resumed: bool, work: Callable[[int], float], warmup_steps: int = 0) -> None:
        """Begin training at ``step``; whatever was logged after it is removed.

        Args:
          work: returns the cost of all steps before a given one, in any unit, for the estimate of the time left.
        """
        del resumed, work, warmup_steps
        self._step = step

    def train(self, step: int, phase: str, metrics: Mapping[str, float]) -> bool:
        """Report the steps up to ``step``; return whether their loss is a spike."""
        del phase, metrics
        self._step = step
        return False

    def evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Report an evaluation."""

    def alarm(self, step: int, text: str) -> None:
        """Report something that a person should look at, but that does not stop the run."""

    @contextlib.contextmanager
    def saving(self, step: int) -> Iterator[None]:
        """Wrap a save: the log is written first, so that no checkpoint is ever ahead of it."""
        del step
        with self.during("saving"):
            yield

    @contextlib.contextmanager
    def to_the_end(self) -> Iterator[None]:
        """Record how the block ended in the status, also if it failed or was interrupted. A run has finished only when
        its last step, its export and its report are done."""
        yield


class RunObserver(Observer):
    """Reports to the run log with its loggers, the progress line and the status file of one run."""

    def __init__(self, workdir: str, run: Mapping[str, Any], num_train_steps: int, loggers: tuple[str, ...]):
        """Open all of them. Raises ``UserError`` for an unknown logger or one whose package is missing."""
        super().__init__(workdir)
        parts = [catalogue.find("reporting.loggers", name, having="Logger").Logger() for name in loggers]
        self._num_steps = num_train_steps
        self.status = StatusFile(workdir)
        self.status.update(num_train_steps=num_train_steps)
        self.progress = Progress(num_train_steps)
        self.log = RunLog(workdir, parts)
        self.log.start(RunFacts(run["run_id"], run["name"], os.fspath(workdir), dict(run["config"])))
        self._private = bool(run["config"].get("private"))

    @contextlib.contextmanager
    def shown(self, state: Running) -> Iterator[None]:
        with self.progress.outside(state), self.status.during(state):
            yield

    def state(self) -> dict[str, Any]:
        return self.status.content()

    def note(self, text: str) -> None:
        self.progress.note(text)

    def evaluations(self, until: int) -> list[Record]:
        return [record for record in self.log.evaluations() if record["step"] <= until]

    def begin(self, step: int, resumed: bool, work: Callable[[int], float], warmup_steps: int = 0) -> None:
        super().begin(step, resumed, work, warmup_steps)
        self.status.lost(self.log.cut_back(step if resumed else -1))
        self.status.cut_back(step if resumed else -1)
        baselines = reading.read_object(files.as_path(self._workdir) / "baselines.json") or {}
        self._alarms = Alarms(self.log.records(), baselines, warmup_steps, self._num_steps)
        if resumed:
            self.note(f"resumed at step {step:,}")
        self.progress.start(step, work)
        self.status.update(state="training", step=step)

    def train(self, step: int, phase: str, metrics: Mapping[str, float]) -> bool:
        super().train(step, phase, metrics)
        record = {**metrics, **({"phase": phase} if phase else {})}
        self.log.write(step, "train", record)
        self.progress.update(step, metrics, phase)
        self.status.waited(metrics["input_wait_seconds"])
        self.status.update(step=step, eta_seconds=self.progress.eta_seconds)
        if spike := self._alarms.train(record):
            self.alarm(step, spike)
        return spike is not None

    def evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        self.log.write(step, "eval", metrics)
        shown = ", ".join(f"{name.replace('_', ' ')} {decimal(value)}" for name, value in metrics.items())
        self.note(f"step {step:,} held-out: {shown}")
        if text := self._alarms.evaluation(step, metrics):
            self.alarm(step, text)

    def alarm(self, step: int, text: str) -> None:
        self.note(f"alarm at step {step:,}: {text}")
        self.status.alarm(step, text)

    @contextlib.contextmanager
    def saving(self, step: int) -> Iterator[None]:
        with self.during("saving"):
            self.log.flush()
            yield
        self.status.saved(step)

    @contextlib.contextmanager
    def to_the_end(self) -> Iterator[None]:
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

    def _end(self, state: Ended, error: BaseException | None = None) -> None:
        self.progress.finish()
        self.log.close()
        kind = type(error).__name__
        message = str(error) if isinstance(error, UserError) else f"{kind}: {error}"  # of a bug the kind says more
        # In a private run only the kind: the message may name files of the corpus.
        text = (kind if self._private else message.splitlines()[0]) if error else None
        self.status.end(state, text, resumable=not isinstance(error, RepeatingError))


def observe(workdir: str, run: Mapping[str, Any], num_train_steps: int, loggers: tuple[str, ...]) -> Observer:
    """Return the observer of this process: on the first one it writes, ``run.json`` included; on the others it is
    silent."""
    if not distributed.is_first():
        return Observer(workdir)
    write_run(workdir, run)
    return RunObserver(workdir, run, num_train_steps, loggers)
