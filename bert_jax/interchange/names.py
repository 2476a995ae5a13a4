"""Entries that give the name of each array in our parameter tree and in transformers.

A family's ``map`` is a tuple of entries. ``{i}`` in a name stands for the number of a layer.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Entry(NamedTuple):
    """An array of our parameter tree and the same array in a model of transformers.

    Attributes:
      ours: the array's path in our unrolled tree.
      theirs: the array's name in a transformers model that has a head. In a model without a head, the name lacks the
        family's prefix.
      inputs: for a kernel, the number of leading axes that are inputs; 0 for an array with the same layout on both
        sides.
      skipped: the number of leading rows of transformers' table that our table does not have.
      optional: whether models of some sizes have no such array.
      turned: whether a kernel is the weight [out, in] of a Linear. If False, it is the weight [in, out] of a Conv1D.
      last_first: whether the last axis of our array is the first axis there; all others are the same.
    """

    ours: str
    theirs: str
    inputs: int = 0
    skipped: int = 0
    optional: bool = False
    turned: bool = True
    last_first: bool = False

    @property
    def part(self) -> str:
        """The part of our tree to which the array belongs, such as ``encoder`` or ``classifier``."""
        return self.ours.partition("/")[0]


def dense(ours: str, theirs: str, inputs: int = 1) -> tuple[Entry, Entry]:
    """Return the two entries (kernel, bias) of a dense layer."""
    return Entry(f"{ours}/kernel", f"{theirs}.weight", inputs), Entry(f"{ours}/bias", f"{theirs}.bias")


def conv(ours: str, theirs: str, inputs: int = 1) -> tuple[Entry, Entry]:
    """Return the two entries (kernel, bias) of a dense layer that is a Conv1D in transformers."""
    return Entry(f"{ours}/kernel", f"{theirs}.weight", inputs, turned=False), Entry(f"{ours}/bias", f"{theirs}.bias")


def norm(ours: str, theirs: str) -> tuple[Entry, Entry]:
    """Return the two entries (scale, bias) of a layer norm."""
    return Entry(f"{ours}/scale", f"{theirs}.weight"), Entry(f"{ours}/bias", f"{theirs}.bias")


def to_theirs(array: np.ndarray, entry: Entry) -> np.ndarray:
    """Return an array of ours as transformers stores it.

    A kernel [*inputs, *outputs] becomes the weight [out, in] of a Linear, or [in, out] of a Conv1D. A table gets rows
    of zeros where our table skips rows. A bias is flattened to one axis. All other arrays stay as they are.
    """
    if entry.last_first:
        return np.ascontiguousarray(np.moveaxis(array, -1, 0))
    if entry.skipped:
        return np.concatenate([np.zeros((entry.skipped, *array.shape[1:]), array.dtype), array])
    if not entry.inputs:
        return array.reshape(-1) if entry.ours.endswith("/bias") else array
    rows = int(np.prod(array.shape[: entry.inputs]))
    weight = array.reshape(rows, -1)
    return np.ascontiguousarray(weight.T) if entry.turned else weight


def to_ours(array: np.ndarray, entry: Entry, shape: tuple[int, ...]) -> np.ndarray:
    """Return an array of transformers as an array of ``shape`` in our tree: the inverse of ``to_theirs``."""
    if entry.last_first:
        return np.ascontiguousarray(np.moveaxis(array, 0, -1))
    return np.ascontiguousarray(array.T if entry.inputs and entry.turned else array[entry.skipped :]).reshape(shape)
