"""Entries that give the name of each array in our parameter tree and in other checkpoint formats.

A family's ``map`` is a tuple of entries. ``{i}`` in a name stands for the number of a layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np


class Entry(NamedTuple):
    """An array of our parameter tree and the same array in other checkpoints.

    Attributes:
      ours: the array's path in our unrolled tree.
      theirs: the array's name in a transformers model that has a head. In a model without a head, the name lacks the
        family's prefix.
      inputs: for a kernel, the number of leading axes that are inputs; 0 for an array with the same layout on both
        sides.
      original: the array's name in a TensorFlow checkpoint of google-research/bert.
      as_original: whether that checkpoint stores this kernel as [out, in], as transformers does. It stores most kernels
        as [in, out].
      skipped: the number of leading rows of transformers' table that our table does not have.
    """

    ours: str
    theirs: str
    inputs: int = 0
    original: str = ""
    as_original: bool = False
    skipped: int = 0


# Endings of variable names in a TensorFlow checkpoint that belong to the optimizer, not to the model.
OPTIMIZER = ("/adam_m", "/adam_v", "global_step")


def _original(theirs: str) -> str:
    return theirs.replace("layer.{i}", "layer_{i}").replace(".", "/")


def dense(ours: str, theirs: str, inputs: int = 1) -> tuple[Entry, Entry]:
    """Return the two entries (kernel, bias) of a dense layer."""
    original = _original(theirs)
    return (
        Entry(f"{ours}/kernel", f"{theirs}.weight", inputs, f"{original}/kernel"),
        Entry(f"{ours}/bias", f"{theirs}.bias", 0, f"{original}/bias"),
    )


def norm(ours: str, theirs: str) -> tuple[Entry, Entry]:
    """Return the two entries (scale, bias) of a layer norm."""
    original = _original(theirs)
    return (
        Entry(f"{ours}/scale", f"{theirs}.weight", 0, f"{original}/gamma"),
        Entry(f"{ours}/bias", f"{theirs}.bias", 0, f"{original}/beta"),
    )


def table(ours: str, theirs: str, skipped: int = 0) -> Entry:
    """Return the entry of an embedding table; see ``Entry.skipped``."""
    return Entry(ours, f"{theirs}.weight", 0, _original(theirs), skipped=skipped)


def outputs(ours: str, theirs: str, original: str = "") -> tuple[Entry, Entry]:
    """Return the two entries (kernel, bias) of an output layer.

    Args:
      original: the prefix in a TensorFlow checkpoint, where the variables are ``output_weights`` and ``output_bias``.
    """
    return (
        Entry(f"{ours}/dense/kernel", f"{theirs}.weight", 1, f"{original}output_weights", as_original=True),
        Entry(f"{ours}/dense/bias", f"{theirs}.bias", 0, f"{original}output_bias"),
    )


def part(entry: Entry) -> str:
    """Return the part of our tree to which an entry belongs, such as ``encoder`` or ``classifier``."""
    return entry.ours.partition("/")[0]


def written_out(entries: Iterable[Entry], num_layers: int) -> Iterator[Entry]:
    """Yield the entries.

    An entry with ``{i}`` is yielded once per layer, with the layer's number in place of ``{i}``.
    """
    for entry in entries:
        for i in range(num_layers) if "{i}" in entry.ours else [0]:
            ours, theirs, original = (
                name.replace("{i}", str(i)) for name in (entry.ours, entry.theirs, entry.original)
            )
            yield entry._replace(ours=ours, theirs=theirs, original=original)


def to_theirs(array: np.ndarray, entry: Entry) -> np.ndarray:
    """Return an array of ours as transformers stores it.

    A kernel [*inputs, *outputs] becomes the weight [out, in] of a Linear. A table gets rows of zeros where our table
    skips rows. A bias is flattened to one axis. All other arrays stay as they are.
    """
    if entry.skipped:
        return np.concatenate([np.zeros((entry.skipped, *array.shape[1:]), array.dtype), array])
    if not entry.inputs:
        return array.reshape(-1) if entry.ours.endswith("/bias") else array
    rows = int(np.prod(array.shape[: entry.inputs]))
    return np.ascontiguousarray(array.reshape(rows, -1).T)


def to_ours(array: np.ndarray, entry: Entry, shape: tuple[int, ...]) -> np.ndarray:
    """Return an array of transformers as an array of ``shape`` in our tree: the inverse of ``to_theirs``."""
    return np.ascontiguousarray(array.T if entry.inputs else array[entry.skipped :]).reshape(shape)


def from_original(tensors: dict[str, np.ndarray], entries: Iterable[Entry]) -> dict[str, np.ndarray]:
    """Return the tensors of a TensorFlow checkpoint under the names, and in the layout, of transformers.

    Tensors without an entry keep their names and layout.
    """
    known = {entry.original: entry for entry in entries}
    found = {}
    for name, array in tensors.items():
        entry = known.get(name)
        if entry is None:
            found[name] = array
        else:
            found[entry.theirs] = array.T if entry.inputs and not entry.as_original and array.ndim == 2 else array
    return found
