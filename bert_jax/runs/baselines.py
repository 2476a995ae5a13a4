"""Writes ``baselines.json``: figures that need no learning, with which a run's held-out figures are compared."""

from __future__ import annotations

import json
from collections.abc import Callable

from bert_jax.reporting.formats import is_number
from bert_jax.storage import files, reading
from bert_jax.task import Task
from bert_jax.training.loop import Experiment

Note = Callable[[str], None]


def write_baselines(task: Task, experiment: Experiment, workdir: str, fingerprint: str, note: Note) -> None:
    """Write and print the baselines: figures to compare held-out figures with.

    An existing ``baselines.json`` is kept if it is for the same rows.
    """
    path = files.as_path(workdir) / "baselines.json"
    phase, rows = experiment.evaluated_phase, experiment.training.eval_rows
    reckoned_for = [fingerprint, phase.kind, rows]
    figures = reading.read_object(path) or {}
    if figures.pop("reckoned_for", None) != reckoned_for or not all(map(is_number, figures.values())):
        figures = task.baselines(phase.kind, rows)
        files.write_text(path, json.dumps({**figures, "reckoned_for": reckoned_for}))
    shown = [f"{name.replace('_', ' ')} {value:.3f}" for name, value in figures.items()]
    note(f"to beat on the held-out rows: {', '.join(shown)}")
