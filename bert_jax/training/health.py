"""Ends a run that no longer learns: too many skipped steps in a row, or parameters that are not finite before a save.

All decisions follow from the state, which every process has, and from ``run.json``. So a resumed run, and every process
of a job, comes to the same decision.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.checkpoints.restoring import newest_verified, saved_steps
from bert_jax.checkpoints.saving import Checkpoints
from bert_jax.cluster import distributed
from bert_jax.errors import RepeatingError
from bert_jax.reporting.observer import Observer
from bert_jax.rows.loader import Batches
from bert_jax.rows.share import WHOLE
from bert_jax.storage import files
from bert_jax.task import Task
from bert_jax.training.experiment import Experiment
from bert_jax.training.state import TrainState
from bert_jax.workdir import run_record

FILE = "not_finite.json"
_WITHOUT_OVERLAP = (
    "config.mesh.overlap is on, which may be the cause (jax#38741): go on with --config.mesh.overlap=False first"
)


class Health:
    """Watches a run for steps and parameters that are not finite, beginning with the state it starts or resumes from.

    Attributes:
      facts: the facts saved with every checkpoint; their entry ``run`` lists the skipped steps.
    """

    def __init__(
        self,
        task: Task,
        experiment: Experiment,
        observer: Observer,
        checkpoints: Checkpoints,
        facts: Mapping[str, Any],
        state: TrainState,
    ):
        self._task, self._phases, self._observer, self._checkpoints = task, experiment.phases, observer, checkpoints
        self._most, self._overlap = experiment.training.max_skipped_in_a_row, experiment.mesh.overlap
        self._seen = int(state.skipped.count)
        recorded = facts["run"].get("skipped_steps", []) if distributed.is_first() else []
        known = distributed.first_says("skipped steps", recorded)
        self._steps = [step for step in known if step < int(state.step)]
        self.facts = self._with_steps(facts) if len(self._steps) < len(recorded) else facts

    def look(self, state: TrainState) -> None:
        """Record the steps that were skipped since the last call; call this at least every ``state.LAST`` steps.

        Raises:
          RepeatingError: too many steps in a row were skipped.
        """
        if not (new := jax.device_get(state.skipped).since(self._seen)):
            return
        self._seen += len(new)
        self._steps += new
        self.facts = self._with_steps(self.facts)
        what = f"{_in_words(new)} not finite: nothing was learned from {'it' if len(new) == 1 else 'them'}"
        self._observer.alarm(int(state.step), f"{what}; {_WITHOUT_OVERLAP}" if self._overlap else what)
        steps = np.array(self._steps)
        for _, first, last in stretches(np.zeros_like(steps), steps):
            if last - first + 1 >= self._most and last >= new[0]:
                raise self._end(range(first, first + self._most))

    def has_learned(self, done: int) -> bool:
        """Return whether the last of the ``done`` steps was applied rather than skipped.

        If it was skipped, the current parameters give a loss or gradient that is not finite, so their checkpoint must
        not replace a better checkpoint.
        """
        return done - 1 not in self._steps[-1:]

    def check(self, state: TrainState) -> None:
        """Check that ``state`` is finite, before any of it is saved.

        Raises:
          RepeatingError: too many steps in a row were skipped, or parameters or moments are not finite.
        """
        self.look(state)
        if not bool(_all_finite((state.params, state.opt_state))):
            raise self._diverged(f"the parameters are not finite after {int(state.step):,} steps", int(state.step))

    def _with_steps(self, facts: Mapping[str, Any]) -> Mapping[str, Any]:
        if not distributed.is_first():
            return facts
        return {**facts, "run": run_record.record(self._observer.workdir, skipped_steps=self._steps)}

    def _end(self, row: Sequence[int]) -> RepeatingError:
        """Write the training rows of the consecutive skipped steps ``row`` to ``FILE``; return the error to raise."""
        many = f"{len(row)} steps in a row" if len(row) > 1 else "a step"
        what = f"loss or gradient of {many}, from step {row[0]:,} on, not finite; {FILE} names their rows"
        error = self._diverged(what, row[0])
        if distributed.is_first():
            facts = self.facts["run"]
            before = [saved for saved in saved_steps(self._observer.workdir) if saved <= row[0]]
            content = {
                "what": "the loss or the gradient of each of these steps is not finite",
                "verified_step": newest_verified(self._observer.workdir, before),
                "command": facts.get("command"),
                "seed": facts.get("config", {}).get("seed"),
                "corpus_fingerprint": self.facts.get("corpus_fingerprint"),
                "versions": facts.get("versions"),
                "git_commit": facts.get("git_commit"),
                "steps": [self._rows(step) for step in row],
            }
            files.write_text(files.as_path(self._observer.workdir) / FILE, json.dumps(content, indent=1))
        return error

    def _diverged(self, what: str, step: int) -> RepeatingError:
        """Return the error that says ``what`` was found at ``step``.

        It names the newest checkpoint whose parameters are known to have given a finite loss.
        """
        with self._observer.during("saving"):
            self._checkpoints.wait()
        before = [saved for saved in saved_steps(self._observer.workdir) if saved < step]
        before = [saved for saved in before if not {saved, saved - 1} & {*self._steps}]
        return diverged(what, newest_verified(self._observer.workdir, before), self._overlap)

    def _rows(self, number: int) -> dict[str, Any]:
        """Return a description of a step with the rows that it reads on all hosts, as [epoch, first row, last row]."""
        index = self._phases.locate(number)[0]
        phase = self._phases.phases[index]
        batches = Batches({index: self._task.source("train", phase.kind, index)}, self._phases, WHOLE)
        step = batches.step(number)
        return {"step": number, "phase": phase.kind, "kind": step.kind, "rows": stretches(step.epochs, step.rows)}


def stretches(epochs: np.ndarray, rows: np.ndarray) -> list[list[int]]:
    """Return rows [B] of epochs [B] as a list of [epoch, first row, last row], one for each run of consecutive rows."""
    ends = np.flatnonzero((np.diff(rows) != 1) | (np.diff(epochs) != 0))
    starts, ends = np.r_[0, ends + 1], np.r_[ends, len(rows) - 1]
    return [[int(epochs[a]), int(rows[a]), int(rows[b])] for a, b in zip(starts, ends, strict=True)]


def _in_words(steps: Sequence[int]) -> str:
    """Return "the loss or gradient of step 7 is", "... of steps 7 and 9 is" or "... of 30 steps from 7 to 99 is"."""
    first, last, number = f"{steps[0]:,}", f"{steps[-1]:,}", len(steps)
    which = {1: f"step {first}", 2: f"steps {first} and {last}"}.get(number, f"{number} steps from {first} to {last}")
    return f"the loss or gradient of {which} is"


@jax.jit
def _all_finite(tree: Any) -> jax.Array:
    """Return whether every floating-point number in ``tree`` is finite, as [] bool."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return jnp.stack([jnp.isfinite(leaf).all() for leaf in leaves]).all()


def diverged(what: str, sound: int | None, overlap: bool) -> RepeatingError:
    """Return the error that ends a run whose parameters are no longer good, so that they are not saved.

    Args:
      what: what is wrong.
      sound: the newest verified step before that, or None.
      overlap: whether ``config.mesh.overlap`` is on, which may be the cause.
    """
    saved, goes_on = "there is no verified step before that", ""
    if sound is not None:
        saved = f"step {sound:,} is the newest verified checkpoint before that"
        goes_on = f", if you like from --init=WORKDIR@{sound}"
    first = f"; {_WITHOUT_OVERLAP}" if overlap else ""
    return RepeatingError(
        f"{what}; {saved}{first}. The same command would end the same way: lower the learning rate or lengthen the "
        f"warm-up, in a new --workdir{goes_on}"
    )
