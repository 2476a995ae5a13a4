"""Writes ``baselines.json``: figures that need no learning, with which a run's held-out figures are compared."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bert_jax.objectives.base import RATE, PretrainingObjective, majority_rates
from bert_jax.program import program
from bert_jax.reporting.formats import in_words, is_number
from bert_jax.rows.phases import Phase, Phases
from bert_jax.storage import files, reading
from bert_jax.training.loop import Experiment

Note = Callable[[str], None]
TRAIN_ROWS = 1024  # the first rows of a phase, from which the shares of its labels are counted
UNBALANCED = 0.65  # a larger share of one label leaves little to learn from two
ONE_SIDED = 0.9  # a larger one comes from documents of one sentence, which longer rows do not mend
PHASES = "phases"  # the entry with the shares of each phase's own labels


def write_baselines(
    task: PretrainingObjective, experiment: Experiment, workdir: str, fingerprint: str, corpus: Any, note: Note
) -> None:
    """Write and print the baselines: figures to compare held-out figures with.

    An existing ``baselines.json`` is kept if it is for the same rows. The parts of a mixture have baselines of their
    own, as ``<name>/<part>``. The entry ``phases`` has, for each phase, the share of the most common label in its rows
    to train on; a line names the phases whose labels are unbalanced, and how to inspect the folder ``corpus``.
    """
    path = files.as_path(workdir) / "baselines.json"
    phase, rows = experiment.evaluated_phase, experiment.training.eval_rows
    lengths = [[one.kind, one.max_length] for one in experiment.phases.phases]
    reckoned_for = [fingerprint, phase.kind, rows, lengths]
    figures = reading.read_object(path) or {}
    if figures.pop("reckoned_for", None) != reckoned_for or not _sound(figures):
        figures = dict(task.baselines(phase.kind, rows))
        for part in task.heldout_parts if len(task.heldout_parts) > 1 else ():
            figures |= {f"{name}/{part}": value for name, value in task.baselines(phase.kind, rows, part).items()}
        by_phase = {one.kind: _of_phase(task, experiment.phases, i) for i, one in enumerate(experiment.phases.phases)}
        figures |= {PHASES: {kind: rates for kind, rates in by_phase.items() if rates}}
        files.write_text(path, json.dumps({**figures, "reckoned_for": reckoned_for}))
    shown = [f"{in_words(name)} {value:.3f}" for name, value in figures.items() if name != PHASES]
    if shown:
        note(f"to beat on the held-out rows: {', '.join(shown)}")
    listed = ",".join(dict.fromkeys(str(length) for _, length in lengths))
    inspect = f"{program()} inspect --corpus={corpus} --max_length={listed}"
    for one in experiment.phases.phases:
        for name, rate in figures.get(PHASES, {}).get(one.kind, {}).items():
            if rate > UNBALANCED:
                term = task.terms(task.config)[name.removesuffix(RATE)]
                note(_unbalanced(one, name, rate, inspect if term.labels == "next_sentence_labels" else ""))


def _sound(figures: Mapping[str, Any]) -> bool:
    plain = {name: value for name, value in figures.items() if name != PHASES}
    return all(map(is_number, plain.values())) and isinstance(figures.get(PHASES), dict)


def _of_phase(task: PretrainingObjective, phases: Phases, index: int) -> dict[str, float]:
    """Return the share of the most common label of each classification in the first rows that a phase trains on."""
    phase = phases.phases[index]
    source = task.source("train", phase.kind, index)
    first = sum(one.num_steps for one in phases.phases[:index])
    counts: dict[str, np.ndarray] = {}
    for number in range(min(phase.num_steps, -(-TRAIN_ROWS // phase.batch_size))):
        step = phases.step(first + number, {index: source.rows_per_epoch}, source.buckets)
        here = task.label_counts(source.rows(step.epochs[:TRAIN_ROWS], step.rows[:TRAIN_ROWS]))
        if not here:
            return {}
        counts = {name: counts.get(name, 0) + values for name, values in here.items()}
    return majority_rates(counts)


def _unbalanced(phase: Phase, name: str, rate: float, inspect: str) -> str:
    """``inspect`` is a command that says more; "" if the labels are not those of next sentences."""
    term = name.removesuffix(RATE).upper()
    begins = (
        f"{phase.kind}: {rate:.0%} of the {term} labels of its rows of {phase.max_length} are the same, so {term} "
        f"accuracy begins at {rate:.2f} there and teaches little"
    )
    if not inspect:
        return begins
    longer = f"longer rows help, in a new --workdir: --config.phases.{phase.kind}.max_length={2 * phase.max_length}"
    if rate > ONE_SIDED:
        longer = (
            "masked LM alone fits such text, in a new --workdir: --config.objective.name=mlm "
            "--config.objective.arrangement=sentences"
        )
    return f"{begins}; {longer} ({inspect} says more)"
