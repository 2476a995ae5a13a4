"""Entries that pair a path in our parameter tree with the names of the same array in other checkpoint formats.

A family's ``map`` is made of these entries. ``{i}`` in a name stands for the number of any layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np


class Entry(NamedTuple):
    """One array of our tree and its counterpart in transformers.

    Attributes:
      ours: its path in the unrolled tree.
      theirs: its name in a transformers model that has a head; the encoder alone leaves out the family's prefix.
      inputs: the number of leading input axes of a kernel; 0 for an array that is stored alike on both sides.
      original: its name in a TensorFlow checkpoint of google-research/bert.
      as_original: whether that checkpoint stores this kernel as [out, in], as transformers does; it stores all other
        kernels as [in, out].
      skipped: the number of leading rows in transformers' table that ours does not have.
    """

    ours: str
    theirs: str
    inputs: int = 0
    original: str = ""
    as_original: bool = False
    skipped: int = 0


# Variables of a TensorFlow checkpoint whose names end so belong to the optimizer, not to the model.
OPTIMIZER = ("/adam_m", "/adam_v", "global_step")


def _original(theirs: str) -> str:
    return theirs.replace("layer.{i}", "layer_{i}").replace(".", "/")


def dense(ours: str, theirs: str, inputs: int = 1) -> tuple[Entry, Entry]:
    """Return the entries of a dense layer."""
    original = _original(theirs)
    return (
        Entry(f"{ours}/kernel", f"{theirs}.weight", inputs, f"{original}/kernel"),
        Entry(f"{ours}/bias", f"{theirs}.bias", 0, f"{original}/bias"),
    )


def norm(ours: str, theirs: str) -> tuple[Entry, Entry]:
    """Return the entries of a layer norm."""
    original = _original(theirs)
    return (
        Entry(f"{ours}/scale", f"{theirs}.weight", 0, f"{original}/gamma"),
        Entry(f"{ours}/bias", f"{theirs}.bias", 0, f"{original}/beta"),
    )


def table(ours: str, theirs: str, skipped: int = 0) -> Entry:
    """Return the entry of a table of embeddings; see ``Entry.skipped``."""
    return Entry(ours, f"{theirs}.weight", 0, _original(theirs), skipped=skipped)


def outputs(ours: str, theirs: str, original: str = "") -> tuple[Entry, Entry]:
    """Return the entries of an output layer.

    Args:
      original: the prefix in a TensorFlow checkpoint, where the variables are ``output_weights`` and ``output_bias``.
    """
    return (
        Entry(f"{ours}/dense/kernel", f"{theirs}.weight", 1, f"{original}output_weights", as_original=True),
        Entry(f"{ours}/dense/bias", f"{theirs}.bias", 0, f"{original}output_bias"),
    )


def part(entry: Entry) -> str:
    """Return the name of the part of our tree that the entry belongs to, such as ``encoder`` or ``classifier``."""
    return entry.ours.partition("/")[0]


def written_out(entries: Iterable[Entry], num_layers: int) -> Iterator[Entry]:
    """Yield the entries; those with ``{i}`` once per layer, with the layer's number in place of ``{i}``."""
    for entry in entries:
        for i in range(num_layers) if "{i}" in entry.ours else [0]:
            ours, theirs, original = (
                name.replace("{i}", str(i)) for name in (entry.ours, entry.theirs, entry.original)
            )
            yield entry._replace(ours=ours, theirs=theirs, original=original)


def to_theirs(array: np.ndarray, entry: Entry) -> np.ndarray:
    """Return our array as transformers stores it.

    A kernel [*inputs, *outputs] becomes the weight [out, in] of a Linear, a table gets rows of zeros for those that
    ours skips, and a bias becomes one axis. Everything else stays as it is.
    """
    if entry.skipped:
        return np.concatenate([np.zeros((entry.skipped, *array.shape[1:]), array.dtype), array])
    if not entry.inputs:
        return array.reshape(-1) if entry.ours.endswith("/bias") else array
    rows = int(np.prod(array.shape[: entry.inputs]))
    return np.ascontiguousarray(array.reshape(rows, -1).T)


def to_ours(array: np.ndarray, entry: Entry, shape: tuple[int, ...]) -> np.ndarray:
    """Return transformers' array as a leaf of ``shape`` in our tree: the inverse of ``to_theirs``."""
    return np.ascontiguousarray(array.T if entry.inputs else array[entry.skipped :]).reshape(shape)


def from_original(tensors: dict[str, np.ndarray], entries: Iterable[Entry]) -> dict[str, np.ndarray]:
    """Return the tensors of a TensorFlow checkpoint under Hugging Face's names and in its layout.

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
