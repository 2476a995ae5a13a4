"""The facts that the recipe of a system says: its size, the cost of a token, what it reads, and what it can do."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from bert_jax.recipes.pretraining_settings import PretrainingSettings
from bert_jax.runs.filled_examples import abilities
from bert_jax.runs.pretraining import Pretraining
from bert_jax.task import tasks_of

FILE = "facts.json"


def facts(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of a recipe with a vocabulary.

    Keys: ``parameters`` of the encoder; ``flops`` of a position in a train step, the mean over kinds of rows; ``reads``
    and ``terms`` of the objective; ``fills`` and ``writes``, whether the model fills masks and goes on with a text.
    """
    task = Pretraining(PretrainingSettings.of(config)).task
    model, each = task.setting.model, list(tasks_of(task).values())
    lengths = {kind: spec["input_ids"].shape[0] for kind, spec in task.batch_specs.items()}
    able = abilities(model, task.differs, {one.writes for one in each} - {""})
    return {
        "parameters": model.num_parameters,
        "flops": statistics.fmean(task.flops_per_row[kind] / length for kind, length in lengths.items()),
        "reads": each[0].reads,
        "terms": list(dict.fromkeys(name for one in each for name in one.loss_weights)),
        "fills": able.fills,
        "writes": able.writes,
    }
