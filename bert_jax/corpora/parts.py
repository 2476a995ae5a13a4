"""Puts pieces of a source together into parts of even size. A part becomes one shard of each split."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from bert_jax.corpora.source import Piece

PARTS = 256  # the number of parts of a large corpus: as many shards as a reader keeps open
SMALLEST, LARGEST = 8 << 20, 1 << 30  # bytes of text in a part


class Part(NamedTuple):
    """The unit of work of a build. Its bytes do not depend on the worker that makes it or on other parts."""

    number: int
    pieces: tuple[Piece, ...]

    @property
    def name(self) -> str:
        return f"{self.number:05d}"


def group(pieces: Sequence[Piece], part_bytes: int = 0) -> list[Part]:
    """Return parts of consecutive pieces that together hold about ``part_bytes`` of text; a larger piece is one part.

    Args:
      part_bytes: 0: chosen by the size of all pieces, for enough parts for many workers, but not too many to read at
        random.
    """
    total = sum(piece.num_bytes for piece in pieces)
    wanted = part_bytes or min(max(total // PARTS, SMALLEST), LARGEST)
    return [Part(number, run) for number, run in enumerate(_runs(pieces, wanted))]


def _runs(pieces: Iterable[Piece], part_bytes: int) -> Iterator[tuple[Piece, ...]]:
    run: list[Piece] = []
    size = 0
    for piece in pieces:
        if run and size + piece.num_bytes > part_bytes:
            yield tuple(run)
            run, size = [], 0
        run.append(piece)
        size += piece.num_bytes
    if run:
        yield tuple(run)
