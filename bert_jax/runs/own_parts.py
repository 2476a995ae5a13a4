"""Checks that a user's own files keep the contract of their kind, before anything slow starts."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax import configuration
from bert_jax.errors import UserError, first_line
from bert_jax.losses.cross_entropy import OfLabels
from bert_jax.models.dropout import RowRng
from bert_jax.objectives.base import PretrainingObjective
from bert_jax.objectives.reading import is_sum
from bert_jax.parts import catalogue
from bert_jax.records import Batch, BatchSpec, Sum
from bert_jax.tasks.base import ExampleTask
from bert_jax.training import mesh as meshes
from bert_jax.training.step import CountError, count_targets


@contextlib.contextmanager
def contract_of(name: str) -> Iterator[None]:
    """Context manager: if the objective ``name`` is a user's own file, turn its mistakes into one-line errors."""
    try:
        yield
    except (AttributeError, LookupError, StopIteration, TypeError, ValueError) as error:
        if isinstance(error, UserError) or not catalogue.is_own(name) or catalogue.place_in_own(error):
            raise
        raise UserError(
            f"{catalogue.display_name(name)} does not keep the contract of an objective ({type(error).__name__}: "
            f"{first_line(error)}); bert_jax/objectives/README.md shows what its class, parts, terms and inputs are"
        ) from error


def check_objective(task: PretrainingObjective) -> None:
    """Trace the model and the losses (nothing is computed) if the objective or the encoder is a user's own file.

    Raises ``UserError`` if the parts of the objective do not fit together, and whatever an own file raises.
    """
    if not any(map(catalogue.is_own, (task.name, task.setting.model.encoder))):
        return
    file = catalogue.display_name(task.name)
    if not task.terms(task.config):
        raise UserError(f"{file}: terms returns no term, and a loss needs one")
    spec = next(iter(task.batch_specs.values()))
    added = jax.eval_shape(lambda rows: dict(task.inputs(rows)), _two_rows(spec)).keys()
    if lacking := [name for name in task.derived if name not in added]:
        raise UserError(
            f"{file}: derived names {', '.join(lacking)}, and inputs does not add it; inputs returns "
            f"{', '.join(sorted(added - spec.keys())) or 'nothing new'} beside the features of the rows"
        )
    if unnamed := sorted(added - spec.keys() - set(task.derived)):
        raise UserError(f"{file}: inputs adds {', '.join(unnamed)}, and derived does not name it; name it there")
    check_terms(task, spec, task.inputs)


def _two_rows(spec: BatchSpec) -> dict[str, Any]:
    return {name: jax.ShapeDtypeStruct((2, *one.shape), one.dtype) for name, one in spec.items()}


def check_terms(task: PretrainingObjective | ExampleTask, spec: BatchSpec, inputs: Callable[[Batch], Batch]) -> None:
    """Raise ``UserError``, with file and line of a term, if it cannot be computed, is no sum, or counts outputs."""
    variables = meshes.unbox(jax.eval_shape(task.init, jax.random.key(0)))
    batch = jax.eval_shape(lambda rows: dict(inputs(rows)), _two_rows(spec))
    outputs = jax.eval_shape(task.outputs, variables, _two_rows(spec))
    for name, term in task.terms(task.config).items():
        where = f"{_place_of(task.terms, name)}: the term {name!r}"
        for function in (term.loss, *term.measures.values()):
            try:
                found = jax.eval_shape(function, outputs, batch)
            except KeyError as error:
                missing, place = str(error.args[0]), catalogue.place_in_own(error)
                raise UserError(
                    f"{f'{place}: the term {name!r}' if place else where} reads {missing!r}, which no head returns and"
                    f" no batch has; {configuration.nearest(missing, [*outputs, *batch])}"
                ) from error
            except (TypeError, ValueError) as error:  # such as labels of another shape than their logits
                if catalogue.place_in_own(error):
                    raise
                raise UserError(f"{where} cannot be computed: {' '.join(str(error).split())}") from error
            if not isinstance(found, Sum) or any(x.shape for x in found):
                raise UserError(f"{where} returns no Sum of two scalars, the sum over its targets and their number")
            if not (task.whole_batches or isinstance(function, OfLabels) or is_sum(function, outputs, inputs, spec)):
                raise UserError(
                    f"{where} is no sum over rows (tried on random ones): return the sum of values and the number of"
                    " targets, no mean; if rows depend on each other, set whole_batches = True in the class"
                )
    try:
        rng = jax.eval_shape(lambda: RowRng.create(0, 0, jnp.arange(2, dtype=jnp.uint32)))
        jax.eval_shape(lambda *known: count_targets(task, *known), variables, _two_rows(spec), rng)
    except CountError as error:
        raise UserError(f"{_place_of(task.terms, error.term)}: {error}") from error


def _place_of(terms: Callable[..., Any], name: str) -> str:
    """Return file and line of the term ``name``, as far as the source of ``terms`` shows it."""
    lines, first = inspect.getsourcelines(terms)
    within = (i for i, line in enumerate(lines) if f'"{name}"' in line or f"'{name}'" in line)
    return f"{inspect.getsourcefile(terms)}:{first + next(within, 0)}"
