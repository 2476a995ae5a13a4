"""Our parameter paths and the names of others, as data: what the map of a family is written with.

Layer ``{i}`` stands for every layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np


class Entry(NamedTuple):
    """One array of ours and one of theirs.

    Attributes:
      ours: path in the unrolled tree.
      theirs: name under any head of transformers; a bare model leaves the family's prefix out.
      inputs: number of leading input axes of a kernel; 0: an array that is the same on both sides.
      original: name in a TensorFlow checkpoint of google-research/bert.
      as_original: that one lies [out, in], as theirs does; other kernels of it lie [in, out].
      skipped: leading rows of theirs that ours does not have.
    """

    ours: str
    theirs: str
    inputs: int = 0
    original: str = ""
    as_original: bool = False
    skipped: int = 0


# Ends of names in a TensorFlow checkpoint that belong to the optimizer and not to the model.
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
    """Return the entry of a table of embeddings."""
    return Entry(ours, f"{theirs}.weight", 0, _original(theirs), skipped=skipped)


def outputs(ours: str, theirs: str, original: str = "") -> tuple[Entry, Entry]:
    """Return the entries of a last layer, whose variables run_pretraining.py and its kin make by hand."""
    return (
        Entry(f"{ours}/dense/kernel", f"{theirs}.weight", 1, f"{original}output_weights", as_original=True),
        Entry(f"{ours}/dense/bias", f"{theirs}.bias", 0, f"{original}output_bias"),
    )


def part(entry: Entry) -> str:
    """Return the part of our tree that an entry belongs to: ``encoder``, ``pooler``, ``classifier``, ..."""
    return entry.ours.partition("/")[0]


def written_out(entries: Iterable[Entry], num_layers: int) -> Iterator[Entry]:
    """Yield every entry, layers written out."""
    for entry in entries:
        for i in range(num_layers) if "{i}" in entry.ours else [0]:
            ours, theirs, original = (
                name.replace("{i}", str(i)) for name in (entry.ours, entry.theirs, entry.original)
            )
            yield entry._replace(ours=ours, theirs=theirs, original=original)


def to_theirs(array: np.ndarray, entry: Entry) -> np.ndarray:
    """Return a kernel [*inputs, *outputs] as the weight [out, in] of a Linear, a table with the rows that it skips as
    zeros, anything else as it is."""
    if entry.skipped:
        return np.concatenate([np.zeros((entry.skipped, *array.shape[1:]), array.dtype), array])
    if not entry.inputs:
        return array.reshape(-1) if entry.ours.endswith("/bias") else array
    rows = int(np.prod(array.shape[: entry.inputs]))
    return np.ascontiguousarray(array.reshape(rows, -1).T)


def to_ours(array: np.ndarray, entry: Entry, shape: tuple[int, ...]) -> np.ndarray:
    """Return the inverse of ``to_theirs``, for a leaf of ``shape``."""
    return np.ascontiguousarray(array.T if entry.inputs else array[entry.skipped :]).reshape(shape)


def from_original(tensors: dict[str, np.ndarray], entries: Iterable[Entry]) -> dict[str, np.ndarray]:
    """Return tensors of a TensorFlow checkpoint as Hugging Face names and lays them; unknown ones keep their names."""
    known = {entry.original: entry for entry in entries}
    found = {}
    for name, array in tensors.items():
        entry = known.get(name)
        if entry is None:
            found[name] = array
        else:
            found[entry.theirs] = array.T if entry.inputs and not entry.as_original and array.ndim == 2 else array
    return found
