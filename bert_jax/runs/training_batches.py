"""The batches that a pretraining trains on, for programs that train by themselves or look at the data."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from bert_jax.checkpoints.restoring import saved_steps
from bert_jax.errors import UserError
from bert_jax.models.config import ModelConfig
from bert_jax.program import Note
from bert_jax.recipes.pretraining_settings import PretrainingSettings
from bert_jax.rows.loader import Loader
from bert_jax.rows.phases import Phases
from bert_jax.runs.inputs import initial_of_run
from bert_jax.runs.prepared import Request
from bert_jax.runs.pretraining import Pretraining
from bert_jax.task import Task
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.training import roll_back
from bert_jax.training.mesh import MeshConfig
from bert_jax.workdir import run_record


@dataclasses.dataclass(frozen=True)
class TrainingBatches:
    """The batches of a run: iterate over it, as often as wanted, from ``first_step`` to the last step.

    A batch is a dict of numpy arrays [B, ...]; ``task.batch_specs`` has their names, shapes and dtypes.

    Attributes:
      task: the objective, whose ``loss`` reads a batch; ``task.inputs(batch)`` adds what it derives. If phases have
        different objectives, ``task.of(phase)`` is the objective of a phase.
      model: the architecture that the recipe trains.
    """

    task: Task
    tokenizer: Tokenizer
    model: ModelConfig
    phases: Phases
    first_step: int
    loader: Loader

    def __len__(self) -> int:
        return self.phases.num_steps - self.first_step

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        return (batch for _, batch in self.loader)


def training_batches(config: Mapping[str, Any], request: Request, first_step: int, note: Note) -> TrainingBatches:
    """Return the batches that ``pretrain(config, request)`` trains on, or has trained on.

    A vocabulary or corpus that is missing is made in the workdir, where the run will find it. The machine need not be
    one that the model fits on.

    Raises:
      UserError: the recipe, the workdir or the texts do not fit together, or the run does not have such a step.
    """
    settings = PretrainingSettings.of(config)
    model = {name: value for name, value in settings.model.items() if name != "attention_kernel"}
    settings = dataclasses.replace(settings, mesh=MeshConfig(), model=model)  # only of the machine that trains
    with run_record.only_writer(request.workdir):
        saved = saved_steps(request.workdir)
        bound = bool(saved)
        initial = initial_of_run(settings.vocab, request.typed_keys, request.init, request.workdir, bound)
        prepared = Pretraining(settings, initial, jax.devices()[:1], request=request, saved=saved)
        # raises if the workdir holds another run
        run_record.content(request.workdir, *prepared.record(config), bound=bound)
        prepared.check_inputs(note)
        opened = prepared.open(None, note)
    task, experiment = opened.task, opened.experiment
    rolled = roll_back.of_run(run_record.read_run(request.workdir) if bound else {})
    phases = roll_back.without_windows(experiment.phases, rolled)
    if not (isinstance(first_step, int) and 0 <= first_step < phases.num_steps):
        raise UserError(f"first_step is {first_step!r}; the run has the steps 0 to {phases.num_steps - 1:,}")
    loader = Loader(task.source, phases, first_step, task.batch_specs, settings.loader)
    return TrainingBatches(task, opened.tokenizer, opened.model, phases, first_step, loader)
