"""The steps that ``config.checkpoints.at`` names, which are saved and kept for ever, and the names of their revisions.

An entry is a number of steps, tokens or words (``512``, ``10M tokens``, ``100M words``), or the name of a series of
such numbers (``pythia``, ``babylm``). A series also says what a published revision is called.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

from bert_jax.configuration import nearest
from bert_jax.errors import UserError, few
from bert_jax.rows.phases import Phases, steps_that_read

WHERE = "config.checkpoints.at"
_ENTRY = re.compile(r"(?P<number>[0-9][0-9_]*(\.[0-9]+)?)(?P<scale>[kKMBT]?)(?: *(?P<unit>step|token|word)s?)?")
_SCALES = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_ALLOWED = "a number of steps, tokens or words (512, 10M tokens, 100M words) or one of the series"
# Words are an estimate: a mark that exceeds the words of the whole run by no more than this share is the last step.
_TOLERANCE = Fraction(1, 20)

WordsOfStep = Callable[[int], float]  # index of a phase -> the words that a step of the phase reads


class Mark(NamedTuple):
    """A point of a run.

    Attributes:
      revision: the name of the revision, such as ``step512``.
      required: whether it is an error if the run ends before the mark.
    """

    number: int
    unit: str  # "step", "token" or "word"
    revision: str
    required: bool


def _pythia() -> Iterator[Mark]:
    """Yield the 154 checkpoints of Pythia (Biderman et al. 2023, section 2.1), and what follows in a longer run."""
    for number in itertools.chain([0], (2**i for i in range(10)), itertools.count(1000, 1000)):
        yield Mark(number, "step", f"step{number}", False)


def _babylm() -> Iterator[Mark]:
    """Yield the checkpoints that the BabyLM challenge asks for since 2025 (its script for all revisions names them)."""
    for millions in (*range(1, 10), *range(10, 100, 10), *range(100, 1001, 100)):
        yield Mark(millions * 10**6, "word", f"chck_{millions}M", False)


SERIES: Mapping[str, Callable[[], Iterator[Mark]]] = {"pythia": _pythia, "babylm": _babylm}


def check(at: Sequence[int | str]) -> None:
    """Raise ``UserError`` if an entry of ``at`` is neither a number with a known unit nor the name of a series."""
    for entry in _entries(at):
        if entry not in SERIES:
            _mark(entry)


def steps_at(at: Sequence[int | str], phases: Phases, words_of_step: WordsOfStep | None) -> dict[str, int]:
    """Return name of a revision -> its step, in ascending order.

    A number of tokens (positions of rows, padding included, as in ``num_tokens`` of a phase) or of words is reached by
    the first step after which the run has read so many.

    Args:
      words_of_step: if None, entries in words are left out.

    Raises:
      UserError: an entry is unknown or lies beyond the end of the run, or two entries are the same step.
    """
    names = dict[int, str]()
    for mark in _marks(at, phases, words_of_step):
        step = _step_of(mark, phases, words_of_step)
        if mark.required and step > phases.num_steps:
            raise UserError(
                f"{WHERE} has {mark.revision}{'' if mark.unit == 'step' else f' (step {step:,})'}, and the run ends at "
                f"step {phases.num_steps:,}; leave it out, or train longer"
            )
        if same := names.get(step):
            advice = "leave one out" if mark.required else "take a smaller batch, or name the steps yourself"
            raise UserError(f"{WHERE}: {same} and {mark.revision} are the same step, {step:,}; {advice}")
        names[step] = mark.revision
    return {name: step for step, name in sorted(names.items())}


def remarks(revisions: Mapping[str, int], saved: Sequence[int]) -> list[str]:
    """Return lines for the user about ``revisions`` (name -> step) of a run that has ``saved`` steps."""
    if not revisions:
        return []
    named = [name if name == f"step{step}" else f"{name} (step {step:,})" for name, step in revisions.items()]
    shown = named if len(named) < 4 else [*named[:2], "...", named[-1]]
    missed = [name for name, step in revisions.items() if step < max(saved, default=0) and step not in saved]
    lines = [f"kept for ever: {', '.join(shown)}{f', {len(named)} in all' if shown != named else ''}"]
    return lines + ([f"not saved, because the run has passed them: {few(missed, 5)}"] if missed else [])


def _marks(at: Sequence[int | str], phases: Phases, words_of_step: WordsOfStep | None) -> Iterator[Mark]:
    """Yield the marks of all entries. A series ends with the run."""
    for entry in _entries(at):
        every = SERIES[entry]() if entry in SERIES else iter([_mark(entry)])
        for mark in every:
            if mark.unit == "word" and words_of_step is None:
                continue
            if not mark.required and _step_of(mark, phases, words_of_step) > phases.num_steps:
                break
            yield mark


def _entries(at: Sequence[int | str]) -> list[str]:
    """Return the entries of ``at``. A string may hold several, with commas between them."""
    return [one.strip() for entry in at for one in str(entry).split(",")]


def _mark(entry: str) -> Mark:
    """Return the mark of an entry that is a number. Raises ``UserError`` for any other entry."""
    match = _ENTRY.fullmatch(entry)
    if not match:
        raise UserError(f"{WHERE} has {entry!r}; {_ALLOWED} is needed: {nearest(entry, SERIES)}")
    number, unit = Fraction(match["number"].replace("_", "")) * _SCALES[match["scale"]], match["unit"] or "step"
    if number.denominator > 1:
        raise UserError(f"{WHERE} has {entry!r}, which is no whole number of {unit}s; {_ALLOWED} is needed")
    amount = f"{match['number'].replace('_', '')}{match['scale']}"
    return Mark(int(number), unit, f"step{number}" if unit == "step" else f"{amount}_{unit}s", True)


def _step_of(mark: Mark, phases: Phases, words_of_step: WordsOfStep | None) -> int:
    """Return the step of a mark; a number above the steps of the run if the run does not reach the mark."""
    if mark.unit == "step":
        return mark.number
    if mark.unit == "token":
        return steps_that_read(mark.number, phases.phases)
    assert words_of_step
    left, before = float(mark.number), 0
    for index, phase in enumerate(phases.phases):
        words = words_of_step(index)
        if left <= phase.num_steps * words:
            return before + -int(-left // words)
        left, before = left - phase.num_steps * words, before + phase.num_steps
    return before if left <= _TOLERANCE * mark.number else before + -int(-left // words)
