"""Writes ``baselines.json``: figures that need no learning, with which a run's held-out figures are compared."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

import numpy as np

from bert_jax.objectives.base import PretrainingObjective
from bert_jax.objectives.several import SeveralObjectives
from bert_jax.objectives.terms import RATE, majority_rates
from bert_jax.program import Note, program
from bert_jax.reporting.formats import in_words, is_number
from bert_jax.rows.phases import Phase, Phases
from bert_jax.storage import files, reading
from bert_jax.task import tasks_of
from bert_jax.training.experiment import Experiment

_TRAIN_ROWS = 1024  # the first rows of a phase, from which the shares of its labels are counted
_UNBALANCED = 0.65  # a larger share of one label leaves little to learn from two
PHASES = "phases"  # the entry with the shares of the labels of each phase
UNKNOWN = "unknown_share"  # the entry with the share of [UNK] in the held-out text
OFTEN_UNKNOWN = 0.01  # a larger share of [UNK] makes baselines and losses look easy


def write_baselines(
    task: PretrainingObjective | SeveralObjectives,
    experiment: Experiment,
    workdir: str,
    fingerprint: str,
    corpus: Any,
    note: Note,
) -> None:
    """Write and print the baselines: figures to compare held-out figures with.

    An existing ``baselines.json`` is kept if it is for the same rows. Each part of a mixture has baselines too, named
    ``<name>/<part>``. The entry ``phases`` has, for each phase, the share of the most common label in its rows to train
    on; a line names the phases whose labels are unbalanced, and how to inspect the folder ``corpus``. The entry
    ``unknown_share`` is the share of ``[UNK]`` in the held-out text; a line says so at every start if it is large.
    """
    path = files.as_path(workdir) / "baselines.json"
    phase, rows = experiment.evaluated_phase, experiment.training.eval_rows
    lengths = [[one.kind, one.max_length] for one in experiment.phases.phases]
    masks = experiment.training.eval_masking
    reckoned_for = [fingerprint, phase.kind, rows, lengths, *([dict(masks)] if masks else ())]
    figures = reading.read_object(path) or {}
    if figures.pop("reckoned_for", None) != reckoned_for or not _sound(figures):
        figures = dict(task.baselines(phase.kind, rows))
        parts = task.heldout(phase.kind)
        for part in parts if len(parts) > 1 else ():
            figures |= {f"{name}/{part}": value for name, value in task.baselines(phase.kind, rows, part).items()}
        by_phase = {one.kind: _of_phase(task, experiment.phases, i) for i, one in enumerate(experiment.phases.phases)}
        figures |= {PHASES: {kind: rates for kind, rates in by_phase.items() if rates}}
        figures[UNKNOWN] = _unknown_share(task, phase.kind, rows)
        files.write_text(path, json.dumps({**figures, "reckoned_for": reckoned_for}))
    if shown := _in_a_line({name: value for name, value in figures.items() if name not in (PHASES, UNKNOWN)}):
        note(f"to beat on the held-out rows: {shown}")
    every = ",".join(dict.fromkeys(str(length) for _, length in lengths))
    inspect = f"{program()} inspect {shlex.quote(f'--corpus={corpus}')} --max_length={every}"
    if (unknown := figures.get(UNKNOWN, 0.0)) > OFTEN_UNKNOWN:
        note(
            f"{unknown:.1%} of the held-out text is [UNK], which the vocabulary cannot spell: baselines and losses "
            "count it as a piece that is easy to guess; convert the text (traditional and simplified Chinese differ), "
            f"or learn a vocabulary from it with `{program()} vocab` and give it with --vocab in a new --workdir "
            f"({inspect} says more)"
        )
    for one in experiment.phases.phases:
        for name, rate in figures.get(PHASES, {}).get(one.kind, {}).items():
            if rate > _UNBALANCED:
                terms = [of.terms(of.config) for of in tasks_of(task).values()]  # a name means the same in all of them
                loss: Any = next(of[term] for of in terms if (term := name.removesuffix(RATE)) in of).loss
                note(_describe_imbalance(one, name, rate, inspect if loss.labels == "next_sentence_labels" else ""))


def _in_a_line(figures: Mapping[str, float]) -> str:
    """Return baselines as text, the parts of each in brackets; a part that is the whole is left out."""
    texts: dict[str, list[str]] = {}
    for name, value in figures.items():
        whole, _, part = name.partition("/")
        if figures.get(whole) != value or not part:
            texts.setdefault(whole, []).append(f"{part} {value:.3f}".strip())
    return ", ".join(
        f"{in_words(name)} {found[0] if len(found) == 1 else _with_parts(found, name in figures)}"
        for name, found in texts.items()
    )


def _with_parts(found: list[str], has_whole: bool) -> str:
    return f"{found[0]} ({', '.join(found[1:])})" if has_whole else f"({', '.join(found)})"


def _sound(figures: Mapping[str, Any]) -> bool:
    plain = {name: value for name, value in figures.items() if name != PHASES}
    return all(map(is_number, plain.values())) and isinstance(figures.get(PHASES), dict)


def _unknown_share(task: PretrainingObjective | SeveralObjectives, kind: str, num_rows: int) -> float:
    """Return the share of ``[UNK]`` among the pieces of text that the held-out rows show."""
    tokenizer: Any = task.tokenizer
    ids = task.heldout_rows(kind, num_rows)["input_ids"]
    others = [i for i in tokenizer.special_ids if i != tokenizer.unk_id]
    return float((ids == tokenizer.unk_id).sum() / max(1, (~np.isin(ids, others)).sum()))


def _of_phase(task: PretrainingObjective | SeveralObjectives, phases: Phases, index: int) -> dict[str, float]:
    """Return the share of the most common label of each classification in the first rows that a phase trains on."""
    phase = phases.phases[index]
    source = task.source("train", phase.kind, index).for_batches(phase.batch_size)
    first = sum(one.num_steps for one in phases.phases[:index])
    counts: dict[str, np.ndarray] = {}
    for number in range(min(phase.num_steps, -(-_TRAIN_ROWS // phase.batch_size))):
        step = phases.rows_of(first + number, {index: source.rows_per_epoch}, source.buckets)
        here = task.of(step.kind).label_counts(source.rows(step.epochs[:_TRAIN_ROWS], step.rows[:_TRAIN_ROWS]))
        if not here:
            return {}
        counts = {name: counts.get(name, 0) + values for name, values in here.items()}
    return majority_rates(counts)


def _describe_imbalance(phase: Phase, name: str, rate: float, inspect: str) -> str:
    """Return a line about labels that are mostly the same.

    ``inspect``: a command that says more; "" if the labels are not labels of next sentences.
    """
    term = name.removesuffix(RATE).upper()
    begins = (
        f"{phase.kind}: {rate:.0%} of the {term} labels of its rows of {phase.max_length} are the same, so {term} "
        f"accuracy begins at {rate:.2f} there and teaches little"
    )
    if not inspect:
        return begins
    return (
        f"{begins}; in a new --workdir, longer rows help, --config.phases.{phase.kind}.max_length="
        f"{2 * phase.max_length}, or masked LM alone where documents have one sentence, --config.objective.name=mlm "
        f"--config.objective.arrangement=sentences ({inspect} says more)"
    )
