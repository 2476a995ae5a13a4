"""What the loop says while it runs: to the metrics, the progress line and the status file, in one place."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bert_jax import catalogue
from bert_jax.errors import RepeatingError
from bert_jax.training.formats import decimal
from bert_jax.training.loggers.base import RunFacts
from bert_jax.training.progress import Progress
from bert_jax.training.run_log import RunLog
from bert_jax.training.status import StatusFile


class Observer:
    """The run log with its loggers, the progress line and the status of one run.

    ``training_seconds`` is a clock that stands still during everything that is not a training step.
    """

    def __init__(self, workdir: str, run: Mapping[str, Any], num_train_steps: int, loggers: tuple[str, ...]):
        """Raises ``UserError`` for an unknown logger or one whose package is missing."""
        parts = [catalogue.find("training.loggers", name, having="Logger").Logger() for name in loggers]
        self.status = StatusFile(workdir)
        self.status.update(num_train_steps=num_train_steps)
        self.progress = Progress(num_train_steps)
        self.log = RunLog(workdir, parts)
        self.log.start(RunFacts(run["run_id"], run["name"], os.fspath(workdir), dict(run["config"])))
        self.note = self.progress.note
        self._private = bool(run["config"].get("private"))
        self._other_seconds = 0.0

    @property
    def training_seconds(self) -> float:
        return time.perf_counter() - self._other_seconds

    @contextlib.contextmanager
    def during(self, state: str) -> Iterator[None]:
        """While something else than steps goes on: ``compiling``, ``evaluating``, ``saving``."""
        start = time.perf_counter()
        with self.progress.outside(state), self.status.during(state):
            yield
        self._other_seconds += time.perf_counter() - start

    def begin(self, step: int, resumed: bool, work: Callable[[int], float]) -> None:
        """Training starts at ``step``: whatever was written after it is taken back.

        Args:
          work: the cost of all steps before a given one, in any unit, for the time that is left.
        """
        self.status.lost(self.log.cut_back(step if resumed else -1))
        if resumed:
            self.note(f"resumed at step {step:,}")
        self.progress.start(step, work)
        self.status.update(state="training", step=step)

    def train(self, step: int, phase: str, metrics: Mapping[str, float]) -> None:
        self.log.write(step, "train", {**metrics, **({"phase": phase} if phase else {})})
        self.progress.update(step, metrics, phase)
        self.status.waited(metrics["input_wait_seconds"])
        self.status.update(step=step, eta_seconds=self.progress.eta_seconds)

    def evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        self.log.write(step, "eval", metrics)
        shown = ", ".join(f"{name.replace('_', ' ')} {decimal(value)}" for name, value in metrics.items())
        self.note(f"step {step:,} held-out: {shown}")

    @contextlib.contextmanager
    def saving(self, step: int) -> Iterator[None]:
        """Around a save: no checkpoint is ever ahead of the log."""
        self.log.flush()
        with self.during("saving"):
            yield
        self.status.saved(step)

    @contextlib.contextmanager
    def to_the_end(self) -> Iterator[None]:
        """The status says how the block ended, also when it failed or was interrupted."""
        try:
            yield
        except KeyboardInterrupt:
            self._end("interrupted")
            raise
        except BaseException as error:
            self._end("failed", error)
            raise
        self._end("finished")

    def _end(self, state: str, error: BaseException | None = None) -> None:
        self.progress.finish()
        self.log.close()
        kind = type(error).__name__
        # In a private run the kind alone: the message may name files of the corpus.
        text = (kind if self._private else f"{kind}: {error}".splitlines()[0]) if error else None
        self.status.end(state, text, resumable=not isinstance(error, RepeatingError))
