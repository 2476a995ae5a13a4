"""Finds which features of a batch a function reads."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import jax

from bert_jax.records import Batch, BatchSpec


class _Noted(dict[str, Any]):
    """A batch that notes the names that are looked up. Copies of it (``{**batch}``) note nothing."""

    def __init__(self, batch: Batch, names: set[str]):
        super().__init__(batch)
        self._names = names

    def __getitem__(self, name: str) -> Any:
        self._names.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        if name in self:  # a feature that the rows do not have is not needed
            self._names.add(name)
        return super().get(name, default)


def read_by(function: Callable[[Batch], Any], spec: BatchSpec) -> set[str]:
    """Return the names of the features that ``function`` reads from a batch of ``spec``; it may lack the last of them.

    The function is traced, not run.
    """
    names: set[str] = set()
    batch = {name: jax.ShapeDtypeStruct((2, *one.shape), one.dtype) for name, one in spec.items()}
    with contextlib.suppress(KeyError):  # the missing feature is among the names
        jax.eval_shape(lambda given: dict(function(_Noted(given, names))), batch)
    return names
