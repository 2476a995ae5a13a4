"""Checks of an objective before any text is read: that a user's own parts work, and that it is given whole batches."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
from jax.sharding import Mesh

from bert_jax import catalogue, configuration
from bert_jax.errors import UserError, first_line
from bert_jax.objectives.base import PretrainingObjective
from bert_jax.objectives.reading import of_other_rows
from bert_jax.rows.phases import Phase
from bert_jax.training import mesh as meshes
from bert_jax.training.experiment import Experiment


@contextlib.contextmanager
def contract_of(name: str) -> Iterator[None]:
    """Context manager: if the objective ``name`` is a user's own file, turn its mistakes into one-line errors."""
    try:
        yield
    except (AttributeError, LookupError, StopIteration, TypeError, ValueError) as error:
        if isinstance(error, UserError) or not catalogue.is_own(name) or catalogue.place_in_own(error):
            raise
        raise UserError(
            f"{catalogue.shown(name)} does not keep the contract of an objective ({type(error).__name__}: "
            f"{first_line(error)}); bert_jax/objectives/README.md shows what its class, parts, terms and inputs are"
        ) from error


def check_own_parts(task: PretrainingObjective) -> None:
    """Trace the model and the losses (nothing is computed) if the objective or the encoder is a user's own file.

    Raises ``UserError`` if the parts of the objective do not fit together, and whatever an own file raises.
    """
    if not any(map(catalogue.is_own, (task.name, task.setting.model.encoder))):
        return
    file = catalogue.shown(task.name)
    if not task.terms(task.config):
        raise UserError(f"{file}: terms returns no term, and a loss needs one")
    spec = next(iter(task.batch_specs.values()))
    batch: Any = {name: jax.ShapeDtypeStruct((2, *one.shape), one.dtype) for name, one in spec.items()}
    added = jax.eval_shape(lambda rows: dict(task.inputs(rows)), batch).keys()
    if lacking := [name for name in task.derived if name not in added]:
        raise UserError(
            f"{file}: derived names {', '.join(lacking)}, and inputs does not add it; inputs returns "
            f"{', '.join(sorted(added - batch.keys())) or 'nothing new'} beside the features of the rows"
        )
    outputs = task.output_shapes()
    for name, term in task.terms(task.config).items():
        if term.logits not in outputs:
            raise UserError(
                f"{file}: the term {name!r} reads the logits {term.logits!r}, which no head returns; "
                f"{configuration.nearest(term.logits, outputs)}"
            )
    try:
        variables = jax.eval_shape(task.init, jax.random.key(0))
        jax.eval_shape(lambda values, rows: task.loss(meshes.unbox(values), rows, None), variables, batch)
    except (TypeError, ValueError) as error:  # such as labels of another shape than their logits
        if catalogue.place_in_own(error):
            raise
        raise UserError(f"{file}: its terms cannot be computed: {' '.join(str(error).split())}") from error


def micro_batches_key(phase: Phase) -> str:
    """Return the key that says in how many parts a batch of ``phase`` is computed."""
    return f"config.{f'phases.{phase.kind}' if phase.micro_batches else 'training'}.micro_batches"


def check_whole_batches(task: PretrainingObjective, experiment: Experiment, mesh: Mesh) -> None:
    """Raise ``UserError`` if ``task`` computes something from a whole batch, and would be given a part of it.

    What ``inputs`` computes is tried on random rows if ``task.whole_batches`` does not say it.
    """
    phases = experiment.phases.phases
    phase = max(phases, key=experiment.micro_batches)
    parts = experiment.micro_batches(phase)
    if task.whole_batches and parts > 1:
        raise UserError(
            f"{micro_batches_key(phase)} is {parts}, and objective {task.name!r} reads whole batches; only 1 is "
            "allowed: lower the batch_size of the phases, or set config.model.remat to 'full'"
        )
    split = meshes.may_split(mesh, experiment.mesh.weight_update)
    if task.whole_batches or not task.derived or not (split or parts > 1):
        return
    if found := of_other_rows(task.inputs, task.batch_specs[phase.kind], task.derived):
        raise UserError(
            f"objective {task.name!r} computes {', '.join(found)} of a row from other rows, of which a device or "
            "micro-batch sees a part; set whole_batches = True in its class, or run on one device without micro-batches"
        )
