"""The nouns passed between packages.

Shape legend, used in comments and docstrings everywhere:

    B rows of a batch      L positions of a row        P masked positions of a row   K packed pairs of a row
    D hidden size          H heads                     V vocabulary                  N layers
    C choices
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    Batch: TypeAlias = Mapping[str, Any]  # numpy [B, ...] left of the mesh, jax right of it
else:
    Batch = dict

# The special tokens of BERT, in the order in which a learned vocabulary reserves them.
PAD, UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
SPECIAL_TOKENS = (PAD, UNK, CLS, SEP, MASK)


@dataclasses.dataclass(frozen=True)
class Document:
    """One document of a corpus: sentences in reading order, all from one place."""

    id: str  # stable name: a path, a module name, a page title
    sentences: tuple[str, ...]


Example: TypeAlias = dict[str, Any]  # a labelled example: the roles that a task reads, and always ``id``


class Feature(NamedTuple):
    """Shape and dtype of one named array of a global batch, without the batch axis."""

    shape: tuple[int, ...]
    dtype: str


BatchSpec: TypeAlias = dict[str, Feature]


class Sum(NamedTuple):
    """A value that is summed over rows, devices, hosts and micro-batches, and divided once, at the end."""

    value: Any
    count: Any
