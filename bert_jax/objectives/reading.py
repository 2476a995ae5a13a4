"""Finds which features a function of a batch reads, and whether the results of a row depend on other rows.

Also makes a model read in the direction that an objective needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.errors import UserError
from bert_jax.models.config import ModelConfig, Reads
from bert_jax.objectives.terms import names_and_functions, values
from bert_jax.records import Batch, BatchSpec, Feature
from bert_jax.task import Measure, Term

# features of every batch whose rows have them
ALWAYS = ("input_ids", "token_type_ids", "attention_mask", "position_ids", "sequence_ids", "row_weights")


class _Noted(dict[str, Any]):
    """A batch that notes the names of its features that are looked up. Copies of it (``{**batch}``) note nothing."""

    def __init__(self, batch: Batch, names: set[str]):
        super().__init__(batch)
        self._features, self._names = frozenset(batch), names

    def __getitem__(self, name: str) -> Any:
        if name in self._features or name not in self:  # not what the function itself has added
            self._names.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        if name in self._features:  # a feature that the rows do not have is not needed
            self._names.add(name)
        return super().get(name, default)


def read_by(
    function: Callable[[Batch], Batch],
    spec: BatchSpec,
    given: Iterable[str] = (),
    inputs: Callable[[Batch], Batch] = dict,
) -> set[str]:
    """Return the names of the features that ``function`` reads from a batch of ``spec``; one may be missing there.

    The function is traced, not run: once with a batch that notes what is read, then with the features found so far and
    the features ``given`` alone, until no other feature is missed. So reads of a copy are found too.

    Args:
      inputs: adds features to a batch before ``function`` reads it. What it reads itself is not noted.
    """
    names: set[str] = set()
    given = set(given)
    batch = {name: jax.ShapeDtypeStruct((2, *one.shape), one.dtype) for name, one in spec.items()}
    _missing(lambda features: function(_Noted(inputs(features), names)), batch)

    def whole(features: Batch) -> Batch:
        return function(inputs(features))

    while (name := _missing(whole, {n: batch[n] for n in batch if n in names | given})) in spec:
        if name in names:
            break  # a mapping of the function's own lacks this name
        names.add(name)
    return names


def with_attention(model: ModelConfig, reads: Reads, objective: str) -> ModelConfig:
    """Return ``model`` as it reads for an objective. Raises ``UserError`` if its encoder cannot."""
    if (found := model.reading(reads)) is None:
        able = f"reads {model.reads} alone"
        if (model.reads, reads) == ("both sides", "what came before"):
            able = "cannot: its Config has no field 'attention'"
        raise UserError(
            f"objective {objective!r} reads {reads}, and encoder {model.encoder!r} {able}; take another "
            "config.objective.name or config.model.encoder"
        )
    return found


class Functions(NamedTuple):
    """Functions of an objective that read a batch.

    Attributes:
      inputs: adds the features ``derived`` to a batch.
      forward: gives the outputs of a batch to which ``inputs`` has added features; None: as the base class does.
      output_shapes: gives the shapes of the outputs for rows of a spec.
    """

    inputs: Callable[[Batch], Batch]
    derived: tuple[str, ...]
    forward: Callable[[Batch], Batch] | None
    output_shapes: Callable[[BatchSpec], Mapping[str, jax.ShapeDtypeStruct]]


def features_read(heads: set[str], own: Functions, terms: Mapping[str, Term], spec: BatchSpec) -> set[str]:
    """Return the names of the features that an objective reads.

    Args:
      heads: the names of the features that its heads read.
      spec: the features of its rows, which may lack some of the features that it reads.
    """
    derived, (named, unnamed) = set(own.derived), names_and_functions(terms)
    needed = heads - derived
    given = (needed | named).union(ALWAYS)
    needed |= read_by(own.inputs, spec, given)
    if own.forward and needed <= spec.keys():
        needed |= read_by(own.forward, spec, given | needed, own.inputs) - derived
    if needed <= spec.keys() and (unnamed or not named - derived <= spec.keys()):  # else no trace of the model
        outputs = own.output_shapes(spec)
        named -= outputs.keys() - spec.keys()
        named |= read_by(lambda batch: values(unnamed, outputs, own.inputs(batch)), spec, given | needed)
    return needed | (named - derived)


def _missing(function: Callable[[Batch], Batch], batch: Batch) -> Any:
    """Return the name that a trace of ``function`` looks up and does not find, or None."""
    try:
        jax.eval_shape(lambda features: dict(function(features)), batch)
    except KeyError as error:
        return next(iter(error.args), None)
    return None


def of_other_rows(function: Callable[[Batch], Batch], spec: BatchSpec, names: Iterable[str]) -> list[str]:
    """Return the features among ``names`` whose values in a row, as ``function`` adds them, depend on other rows.

    The function is run on four rows of random numbers and on each half of them; a feature that differs is returned.
    """
    batch = _random_rows(spec)
    added = jax.jit(lambda rows: {name: value for name, value in function(rows).items() if name in set(names)})
    whole, first, last = (added(jax.tree.map(lambda x, part=part: x[part], batch)) for part in _PARTS)
    return [
        name
        for name, value in whole.items()
        if not np.allclose(value, np.concatenate([first[name], last[name]]), rtol=1e-3, equal_nan=True)
    ]


def is_sum(
    function: Measure,
    outputs: Mapping[str, jax.ShapeDtypeStruct],
    inputs: Callable[[Batch], Batch],
    spec: BatchSpec,
) -> bool:
    """Return whether the result of ``function`` for four random rows is the sum of its results for the two halves.

    Args:
      outputs: the shapes of the model's outputs, whose values are random too.
      inputs: what adds features to the rows of ``spec``.
    """
    wide = {n: "float32" if jnp.issubdtype(x.dtype, jnp.floating) else str(x.dtype) for n, x in outputs.items()}
    shapes = {name: Feature(x.shape[1:], wide[name]) for name, x in outputs.items()}
    rows = _random_rows(shapes), jax.jit(lambda batch: dict(inputs(batch)))(_random_rows(spec))
    compute = jax.jit(lambda *both: tuple(function(*both)))
    whole, first, last = (compute(*jax.tree.map(lambda x, part=part: x[part], rows)) for part in _PARTS)
    return np.allclose(whole, np.add(first, last), rtol=1e-3, equal_nan=True)


_PARTS = (slice(0, 4), slice(0, 2), slice(2, 4))


def _random_rows(spec: BatchSpec) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)

    def values(one: Feature) -> np.ndarray:
        shape, dtype = (4, *one.shape), np.dtype(one.dtype)
        return (draw.uniform(size=shape) if dtype.kind == "f" else draw.integers(0, 4, shape)).astype(dtype)

    return {name: values(one) for name, one in spec.items()}
