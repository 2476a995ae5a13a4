"""Checks that an objective whose rows depend on each other is given whole batches."""

from __future__ import annotations

from jax.sharding import Mesh

from bert_jax.errors import UserError
from bert_jax.objectives.base import PretrainingObjective
from bert_jax.objectives.reading import of_other_rows
from bert_jax.training import mesh as meshes
from bert_jax.training.loop import Experiment


def check_whole_batches(task: PretrainingObjective, experiment: Experiment, mesh: Mesh) -> None:
    """Raise ``UserError`` if ``task`` computes something from a whole batch, and would be given a part of it.

    What ``inputs`` computes is tried on random rows if ``task.whole_batches`` does not say it.
    """
    phases = experiment.phases.phases
    phase = max(phases, key=experiment.micro_batches)
    parts = experiment.micro_batches(phase)
    key = f"config.{f'phases.{phase.kind}' if phase.micro_batches else 'training'}.micro_batches"
    if task.whole_batches and parts > 1:
        raise UserError(
            f"{key} is {parts}, and objective {task.name!r} reads whole batches; only 1 is allowed: lower the "
            "batch_size of the phases, or set config.model.remat to 'full'"
        )
    split = meshes.may_split(mesh, experiment.mesh.weight_update)
    if task.whole_batches or not task.derived or not (split or parts > 1):
        return
    if found := of_other_rows(task.inputs, task.batch_specs[phase.kind], task.derived):
        raise UserError(
            f"objective {task.name!r} computes {', '.join(found)} of a row from other rows, of which a device or "
            "micro-batch sees a part; set whole_batches = True in its class, or run on one device without micro-batches"
        )
