"""Finds what a function of a batch reads: which features, and whether a row's results depend on other rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

from bert_jax.records import Batch, BatchSpec, Feature


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


def read_by(function: Callable[[Batch], Batch], spec: BatchSpec, given: Iterable[str] = ()) -> set[str]:
    """Return the names of the features that ``function`` reads from a batch of ``spec``; it may lack the last of them.

    The function is traced, not run: once with a batch that notes what is read, then with the features found so far and
    those ``given`` alone, until no other is missed. So reads of a copy are found too.
    """
    names: set[str] = set()
    given = set(given)
    batch = {name: jax.ShapeDtypeStruct((2, *one.shape), one.dtype) for name, one in spec.items()}
    _missing(lambda features: function(_Noted(features, names)), batch)
    while (name := _missing(function, {n: batch[n] for n in batch if n in names | given})) in spec:
        if name in names:
            break  # a mapping of the function's own lacks this name
        names.add(name)
    return names


def _missing(function: Callable[[Batch], Batch], batch: Batch) -> Any:
    """Return the name that a trace of ``function`` looks up and does not find, or None."""
    try:
        jax.eval_shape(lambda features: dict(function(features)), batch)
    except KeyError as error:
        return next(iter(error.args), None)
    return None


def of_other_rows(function: Callable[[Batch], Batch], spec: BatchSpec, names: Iterable[str]) -> list[str]:
    """Return those features ``names`` whose values in a row, as ``function`` adds them, depend on other rows.

    The function is run on four rows of random numbers and on each half of them; a feature that differs is returned.
    """
    draw = np.random.default_rng(0)

    def values(one: Feature) -> np.ndarray:
        shape, dtype = (4, *one.shape), np.dtype(one.dtype)
        return (draw.uniform(size=shape) if dtype.kind == "f" else draw.integers(0, 4, shape)).astype(dtype)

    batch = {name: values(one) for name, one in spec.items()}
    added = jax.jit(lambda rows: {name: value for name, value in function(rows).items() if name in set(names)})
    parts = (slice(0, 4), slice(0, 2), slice(2, 4))
    whole, first, last = (added({name: value[part] for name, value in batch.items()}) for part in parts)
    return [
        name
        for name, value in whole.items()
        if not np.allclose(value, np.concatenate([first[name], last[name]]), rtol=1e-3, equal_nan=True)
    ]
