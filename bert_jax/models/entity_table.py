"""A frozen table with a vector for each entity of a knowledge graph, and how many entities it lacks.

The table is an ``.npy`` file, float16 or float32 [N, E]. Row 0 stands for "no entity" and is zeros; the id of an entity
is its row, 1 or more. A table whose row 0 is an entity is refused and not repaired: all ids would be off by one.
"""

from __future__ import annotations

import dataclasses
import functools
import os

import numpy as np

from bert_jax.errors import UserError, first_line
from bert_jax.storage import files, reading

_ROWS_AT_ONCE = 65_536


@dataclasses.dataclass(frozen=True)
class EntityTable:
    """The vectors of entities.

    Attributes:
      path: the file.
      vectors: float16 or float32 [N, E], all finite, memory-mapped and read-only.
    """

    path: str
    vectors: np.ndarray

    @classmethod
    def load(cls, path: str, where: str = "config.objective.entities") -> EntityTable:
        """Return the table in the file ``path``; ``where`` is the key that names the file, for messages.

        The file is read once, to look for numbers that are not finite. Raises ``UserError`` if the file is missing or
        on an object store, or is no such table.
        """
        needed = "a local .npy file with float16 or float32 vectors [N, E] is needed, row 0 all zeros"
        if not path:
            raise UserError(f"{where} is not given; {needed}")
        place = files.as_path(path)
        if files.is_remote(path) or not place.is_file():
            found = "which is on an object store" if files.is_remote(path) else "and there is no such file"
            raise UserError(f"{where} is {path!r}, {found}; {needed}")
        try:
            reading.check_plain(place)
            vectors = np.lib.format.open_memmap(os.fspath(place), mode="r")
        except (ValueError, EOFError, OSError) as error:
            raise UserError(f"{where} is {path!r}, which cannot be read ({first_line(error)}); {needed}") from error
        if vectors.ndim != 2 or vectors.dtype not in (np.float16, np.float32) or not all(vectors.shape):
            raise UserError(f"{where} is {path!r}, an array {vectors.dtype} {list(vectors.shape)}; {needed}")
        if vectors[0].any():
            raise UserError(
                f"{where} is {path!r}, whose row 0 is not zeros; row 0 stands for no entity, so put a row of zeros "
                "before the vectors, and let the ids of the lexicon count from 1"
            )
        starts = range(0, len(vectors), _ROWS_AT_ONCE)
        bad = sum(int((~np.isfinite(vectors[i : i + _ROWS_AT_ONCE])).any(axis=1).sum()) for i in starts)
        if bad:
            raise UserError(
                f"{where} is {path!r}, in which {bad:,} of {len(vectors):,} vectors ({bad / len(vectors):.2%}) have "
                "numbers that are not finite; give these entities zeros, or take another table"
            )
        return cls(path, vectors)

    @functools.cached_property
    def sha256(self) -> str:
        """The sha256 of the file, in hex."""
        return files.sha256(self.path)

    @property
    def size(self) -> int:
        """The number of rows: entities have the ids 1 to ``size`` - 1."""
        return len(self.vectors)

    @property
    def width(self) -> int:
        """E, the size of a vector."""
        return int(self.vectors.shape[1])

    def check_width(self, entity_size: int) -> None:
        """Raise ``UserError`` unless the vectors have ``config.model.entity_size`` numbers."""
        if self.width != entity_size:
            raise UserError(
                f"the vectors of {self.path} have {self.width} numbers, and config.model.entity_size is {entity_size}; "
                f"set it to {self.width}, or take another table"
            )

    def check_ids(self, ids: np.ndarray, source: str) -> None:
        """Raise ``UserError`` if entities among ``ids`` (any shape; 0 is no entity) have no vector.

        ``source`` says where the ids are from, such as "the lexicon names.tsv".
        """
        entities = np.unique(ids[ids > 0])
        if lacking := int((entities >= self.size).sum()):
            raise UserError(
                f"{lacking:,} of {len(entities):,} entities ({lacking / len(entities):.2%}) of {source} have no vector:"
                f" {self.path} has the ids 1 to {self.size - 1:,}, and the largest of them is {entities[-1]:,}; take "
                "the table whose rows these ids are"
            )
