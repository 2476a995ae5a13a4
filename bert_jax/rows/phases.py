"""The phases of a run, and which rows a step reads (``Phases.rows_of``), also in a resumed run."""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools
import math
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.configuration import build, check_fields
from bert_jax.errors import UserError
from bert_jax.rows import random
from bert_jax.task import Bucket, Step

MOST_STEPS = 2**31 - 1  # steps are counted in 32 bits
_MOST_EPOCHS = 1_000_000  # keeps the number of steps finite
_LENGTHS = ("num_steps", "num_tokens", "num_epochs")  # a phase has exactly one of these keys
_NOT_YET_KNOWN = 2**20  # stands for the steps of a phase in epochs until the rows of its corpus are counted

_StepsPerEpoch = Callable[[int], float]  # index of a phase -> the steps that see every row once


@dataclasses.dataclass(frozen=True)
class Phase:
    """Consecutive steps with one batch size and one row length."""

    num_steps: int  # updates; required, unless one of the two keys below says how long the phase is
    batch_size: int  # rows of a step, over all hosts
    max_length: int  # positions of a row
    kind: str  # a key of Task.batch_specs
    num_tokens: int | None = None  # the positions of all rows together
    num_epochs: float | None = None  # how often every row of the corpus is seen
    # keys of config.objective.masking that the phase replaces, such as rate
    masking: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # of a mixture: part -> its share of the rows, in place of the weights of config.corpus.parts; None: theirs
    shares: Mapping[str, float] | None = None
    # keys of config.objective that the phase replaces, such as packing; with name, an objective of its own
    objective: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # a schedule of the phase's own, with the keys of config.schedule, over its steps; if None, that of the run goes on
    schedule: Mapping[str, Any] | None = None
    # keys of config.model that the phase replaces and that change no parameter's shape, such as global_theta
    model: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    micro_batches: int | None = None  # the parts in which a batch is computed; if None, config.training.micro_batches

    def __post_init__(self) -> None:
        names = ("num_steps", "num_tokens", "batch_size", "max_length", "micro_batches")
        where = f"config.phases.{self.kind}"
        check_fields(self, where, "at least 1 is needed", *names, sound=lambda n: n is None or n >= 1)
        allowed = f"more than 0 and at most {_MOST_EPOCHS:,} is allowed"
        check_fields(self, where, allowed, "num_epochs", sound=lambda n: n is None or 0 < n <= _MOST_EPOCHS)
        masking = self.objective.get("masking", {})
        if not isinstance(masking, Mapping):
            raise UserError(f"{where}.objective.masking is {masking!r}; it replaces keys, such as {{'rate': 0.2}}")

    @property
    def changes(self) -> dict[str, Any]:
        """Return the keys of ``config.objective`` that this phase replaces, with their values."""
        masking = {**self.objective.get("masking", {}), **self.masking}
        return {**self.objective, **({"masking": masking} if masking else {})}


@dataclasses.dataclass(frozen=True)
class Phases:
    """The phases of a run, one after another; steps are counted through all phases.

    Attributes:
      left_out: pairs (step, number). From ``step`` to the end of its phase, ``number`` batches are skipped: each step
        reads the batch that lies ``number`` positions further on.
    """

    phases: tuple[Phase, ...]
    left_out: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if not self.phases:
            raise UserError("a run needs at least one phase")
        if self.num_steps > MOST_STEPS:
            raise UserError(f"the phases have {self.num_steps:,} steps in all; at most {MOST_STEPS:,} are allowed")

    @classmethod
    def of(cls, recipe: Mapping[str, Mapping[str, Any]]) -> Phases:
        """Return the phases of ``config.phases`` in the natural order of their names (``phase10`` after ``phase9``)."""
        for name, values in recipe.items():
            if not re.fullmatch(r"[\w-]{1,100}", name):
                found = f"config.phases has the name {reprlib.repr(name)}"
                raise UserError(f"{found}; up to 100 letters, digits, _ and - are allowed")
            if not isinstance(values, Mapping):
                raise UserError(f"config.phases.{name} is {values!r}; num_steps, batch_size and max_length are needed")
        ordered = sorted(recipe.items(), key=lambda item: _natural(item[0]))
        return cls(tuple(_phase(name, values) for name, values in ordered))

    @property
    def in_epochs(self) -> bool:
        """Return whether the steps of a phase follow from the number of rows of the corpus."""
        return any(phase.num_epochs is not None for phase in self.phases)

    def in_steps(self, steps_per_epoch: _StepsPerEpoch) -> Phases:
        """Return the same phases; a phase with ``num_epochs`` has the number of steps that the epochs need."""

        def steps(index: int, phase: Phase) -> int:
            if phase.num_epochs is None:
                return phase.num_steps
            return max(1, math.ceil(round(phase.num_epochs * steps_per_epoch(index), 6)))

        phases = (dataclasses.replace(phase, num_steps=steps(i, phase)) for i, phase in enumerate(self.phases))
        return dataclasses.replace(self, phases=tuple(phases))

    def num_epochs(self, steps_per_epoch: _StepsPerEpoch) -> float:
        """Return how often every row is seen, in all phases together."""
        given = [(phase.num_epochs, phase.num_steps) for phase in self.phases]
        return sum(steps / steps_per_epoch(i) if epochs is None else epochs for i, (epochs, steps) in enumerate(given))

    @property
    def num_steps(self) -> int:
        """Return the number of steps of the whole run."""
        return sum(phase.num_steps for phase in self.phases)

    def as_record(self) -> dict[str, dict[str, int]]:
        """Return name -> number of steps, batch size and row length of each phase, in order, for ``run.json``."""
        names = ("num_steps", "batch_size", "max_length")
        return {phase.kind: {name: getattr(phase, name) for name in names} for phase in self.phases}

    def describe(self, evaluated: Phase) -> str:
        """Return a line with the steps and row lengths of each phase, and the length of the held-out rows.

        Losses can only be compared on rows of the same kind. ``evaluated``: the phase whose rows are held out.
        """
        parts = (f"{p.kind} {p.num_steps:,} steps of {p.batch_size:,} x {p.max_length:,}" for p in self.phases)
        return f"phases: {', '.join(parts)}; held-out rows are of {evaluated.max_length:,} throughout"

    def check_not_past(self, step: int) -> None:
        """Raise ``UserError`` if the phases end before ``step``, the step that the run has reached."""
        if step > self.num_steps:
            raise UserError(
                f"the run has reached step {step:,}, but the phases end at {self.num_steps:,}; --extend takes more"
                " steps, not fewer"
            )

    def locate(self, step: int) -> tuple[int, int]:
        """Return the index of the phase of ``step``, and the step's number within it."""
        if not 0 <= step < self.num_steps:
            raise UserError(f"step {step} is outside the run; it has steps 0 to {self.num_steps - 1}")
        ends = list(itertools.accumulate(phase.num_steps for phase in self.phases))
        index = bisect.bisect_right(ends, step)
        return index, step - (ends[index] - self.phases[index].num_steps)

    def phase_of(self, step: int) -> Phase:
        """Return the phase of ``step``."""
        return self.phases[self.locate(step)[0]]

    def rows_of(
        self, step: int, rows_per_epoch: Mapping[int, int] | Sequence[int], buckets: Sequence[Bucket] = ()
    ) -> Step:
        """Return the rows that ``step`` reads.

        Lay the epochs of a phase end to end: row r of epoch e, of R rows each, has the number e * R + r. Batch k of the
        phase has the B rows from number k * B on. (Batches of buckets: see ``_bucketed``.)

        Args:
          rows_per_epoch: the number of rows by phase index; only the entry for the step's phase is read.
          buckets: the buckets of the step's phase, if its rows have several lengths.
        """
        index, within = self.locate(step)
        phase = self.phases[index]
        within += sum(number for first, number in self.left_out if step - within <= first <= step)
        if buckets:
            return _bucketed(step, index, within, phase.batch_size, buckets)
        sequence = within * phase.batch_size + np.arange(phase.batch_size, dtype=np.int64)
        epochs, rows = np.divmod(sequence, rows_per_epoch[index])
        return Step(number=step, kind=phase.kind, phase=index, epochs=epochs, rows=rows)


def _phase(name: str, values: Mapping[str, Any]) -> Phase:
    """Return the phase that the keys of ``config.phases.<name>`` describe.

    Raises ``UserError`` unless exactly one of ``_LENGTHS`` says how long it is.
    """
    where = f"config.phases.{name}"
    values = {key: value for key, value in values.items() if key not in _LENGTHS or value is not None}
    lengths = [key for key in _LENGTHS if key in values]
    if len(lengths) != 1:
        raise UserError(
            f"{where} has {' and '.join(lengths) or 'none'} of {', '.join(_LENGTHS)}; give exactly one of them"
        )
    phase = build(Phase, {"num_steps": _NOT_YET_KNOWN, **values, "kind": name}, where)
    if phase.num_tokens is None:
        return phase
    return dataclasses.replace(phase, num_steps=-(-phase.num_tokens // (phase.batch_size * phase.max_length)))


def steps_that_read(num_tokens: int, phases: Sequence[Phase]) -> int:
    """Return how many first steps of ``phases`` read ``num_tokens`` positions, as if the last phase had no end."""
    before = 0
    for phase in phases:
        of_step = phase.batch_size * phase.max_length
        if num_tokens <= phase.num_steps * of_step:
            break
        num_tokens -= phase.num_steps * of_step
        before += phase.num_steps
    return before + -(-num_tokens // of_step)


def steps_per_epoch(rows_per_epoch: int, buckets: Sequence[Bucket], batch_size: int) -> float:
    """Return the number of steps of ``batch_size`` rows that see every row once."""
    if not buckets:
        return rows_per_epoch / batch_size
    wanted = _needed(batch_size, buckets) * [bucket.passes[0] for bucket in buckets]
    return float(max(1, round(wanted.sum())))


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key for ``name`` that orders the numbers in names by value."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def _bucketed(number: int, phase: int, within: int, batch_size: int, buckets: Sequence[Bucket]) -> Step:
    """Return step ``number`` of the run: step ``within`` of a phase whose batches have rows of one bucket each.

    An epoch of a bucket has as many batches as all its rows need; the last is filled up with its first rows. The epochs
    of a bucket follow each other, and an epoch of the phase reads of each bucket what ``_dealt`` says, in random order.
    """
    needed = _needed(batch_size, buckets)
    epoch, position = divmod(within, int(steps_per_epoch(0, buckets, batch_size)))
    before, steps = _read_until(phase, batch_size, tuple(buckets), epoch)
    mixed = int(random.permute(random.key("buckets", phase, epoch), position, int(steps.sum()))[0])
    chosen = int(np.searchsorted(np.cumsum(steps), mixed, side="right"))
    own_epoch, batch = divmod(int(before[chosen]) + mixed - int(steps[:chosen].sum()), int(needed[chosen]))
    size, rows = int(batch_size * buckets[chosen].batches), [bucket.rows_per_epoch for bucket in buckets]
    indices = (batch * size + np.arange(size, dtype=np.int64)) % rows[chosen] + sum(rows[:chosen])
    epochs = np.full(size, own_epoch, np.int64)
    return Step(number=number, kind=buckets[chosen].kind, phase=phase, epochs=epochs, rows=indices)


def _needed(batch_size: int, buckets: Sequence[Bucket]) -> np.ndarray:
    """Return the number of batches that all rows of each bucket need, [buckets]."""
    return np.array([-(-bucket.rows_per_epoch // (batch_size * bucket.batches)) for bucket in buckets])


@functools.lru_cache(maxsize=64)
def _read_until(phase: int, batch_size: int, buckets: tuple[Bucket, ...], epoch: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of batches of each bucket [buckets] in all epochs before ``epoch``, and in ``epoch``."""
    needed = _needed(batch_size, buckets)
    if all(bucket.passes == (1.0,) for bucket in buckets):
        return epoch * needed, needed
    dealt = _dealt(phase, batch_size, buckets, np.arange(epoch + 1))
    return dealt[:-1].sum(axis=0), dealt[-1]


def _dealt(phase: int, batch_size: int, buckets: Sequence[Bucket], epochs: np.ndarray) -> np.ndarray:
    """Return how many batches of each bucket ``epochs`` [n] have: [n, buckets], with one sum for all epochs.

    ``Bucket.passes`` asks for a number of batches that is no whole number. The number is rounded up or down at random,
    so that its mean over epochs is right (systematic sampling: one draw places the borders of all buckets on whole
    numbers).
    """
    longest = max(len(bucket.passes) for bucket in buckets)
    passes = np.array([(*b.passes, *[b.passes[-1]] * (longest - len(b.passes))) for b in buckets]).T  # [longest, n]
    borders = np.cumsum(_needed(batch_size, buckets) * passes, axis=1)
    borders *= steps_per_epoch(0, buckets, batch_size) / borders[:, -1:]
    borders = np.round(borders, 9)[np.minimum(epochs, longest - 1)]
    drawn = random.uniform(random.fold(random.key("passes", phase), epochs))
    return np.diff(np.floor(borders + drawn[:, None]), axis=1, prepend=0).astype(np.int64)
