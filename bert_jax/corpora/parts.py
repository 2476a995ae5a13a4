"""Groups the pieces of a source into parts of even size. Each part becomes one shard of each split."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from bert_jax.corpora.source import Piece

PARTS = 256  # the number of parts of a large corpus: as many shards as a reader keeps open
SMALLEST, LARGEST = 8 << 20, 1 << 30  # bytes of text in a part


class Part(NamedTuple):
    """The unit of work of a build: a group of pieces. The result does not depend on the worker or on other parts."""

    number: int
    pieces: tuple[Piece, ...]

    @property
    def name(self) -> str:
        return f"{self.number:05d}"


def group(pieces: Sequence[Piece], part_bytes: int = 0) -> list[Part]:
    """Return parts: groups of consecutive pieces of at most ``part_bytes`` of text. A larger piece is a part by itself.

    Args:
      part_bytes: if 0, it is chosen from the size of all pieces, so that there are enough parts for many workers, but
        not too many for random reads.
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
