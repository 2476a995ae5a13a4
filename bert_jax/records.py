"""The data types that are passed between packages.

These letters stand for sizes in all comments and docstrings:

    B rows of a batch      L positions of a row        P masked positions of a row   K packed pairs of a row
    D hidden size          H heads                     V vocabulary                  N layers
    C choices
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    Batch: TypeAlias = Mapping[str, Any]  # values [B, ...]: numpy on the host, jax on devices
else:
    Batch = dict

# The special tokens of BERT, in the order in which a learned vocabulary reserves them.
PAD, UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
SPECIAL_TOKENS = (PAD, UNK, CLS, SEP, MASK)


@dataclasses.dataclass(frozen=True)
class Document:
    """One document of a corpus: its sentences in reading order."""

    id: str  # stable name: a path, a module name, a page title
    sentences: tuple[str, ...]


Example: TypeAlias = dict[str, Any]  # a labelled example: the values that a task reads, by name, and always ``id``


class Feature(NamedTuple):
    """The shape and dtype of one named array of a batch, without the batch axis."""

    shape: tuple[int, ...]
    dtype: str


BatchSpec: TypeAlias = dict[str, Feature]


class Sum(NamedTuple):
    """A sum of values and a count. Both are added up over rows, devices, hosts and micro-batches, then divided once."""

    value: Any
    count: Any

    def mean(self) -> float:
        """Return the value / the count; 0 if nothing was counted."""
        return float(self.value) / max(float(self.count), 1e-9)
