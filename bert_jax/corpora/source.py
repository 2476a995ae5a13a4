"""The interface of sources, which supply the documents of a corpus.

Each source is a file of this package with a class ``Source``. A source is cut into pieces that are read independently,
so that many workers can build one corpus without exchanging documents. Pieces, their order and their documents depend
only on the source, not on the workers.

The path of a file has the separator ``/./`` between the folder that all files of the source share and the rest, which
stays the same if the files are moved. Such a path can still be opened.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from bert_jax.errors import UserError
from bert_jax.parts import catalogue
from bert_jax.records import Document

MARK = "/./"  # stands in a path before the part that does not change if the files are moved
PIECE_BYTES = 16 << 20  # bytes of text in a piece, where a source can be cut
_SHARDS = 256  # the number of shards of a large corpus: as many as a reader keeps open
_SMALLEST, _LARGEST = 8 << 20, 1 << 30  # bytes of text in a shard
SAMPLED, _SAMPLED_PIECES = 1 << 18, 256  # characters of text are enough to judge a vocabulary; from so many pieces


def below(name: str) -> str:
    """Return the part of ``name`` after the separator. The names of documents begin with it."""
    return name.rpartition(MARK)[2]


def display_path(name: str) -> str:
    """Return the path ``name`` with a plain slash as its separator, for error messages."""
    return name.replace(MARK, "/")


class Piece(NamedTuple):
    """A file, a byte range of a file, or a run of records."""

    name: str  # a path or another key of the source; together with ``start`` it is unique in the source
    start: int = 0  # first byte or record; documents that begin in [start, stop) belong to the piece
    stop: int = -1  # -1 means to the end
    num_bytes: int = 0  # approximate bytes of text, used to group pieces into shards of even size


def record_pieces(name: str, count: int, num_bytes: int) -> list[Piece]:
    """Return runs of consecutive records, of about ``PIECE_BYTES`` each; one empty piece if there are no records.

    Args:
      count: the number of records.
      num_bytes: approximate bytes of their text.
    """
    step = max(1, count * PIECE_BYTES // max(num_bytes, PIECE_BYTES))
    size = num_bytes * step // max(count, 1)
    return [Piece(name, start, min(start + step, count), size) for start in range(0, max(count, 1), step)]


class Shard(NamedTuple):
    """The unit of work of a build: the pieces whose documents go to one shard of each split."""

    number: int
    pieces: tuple[Piece, ...]

    @property
    def name(self) -> str:
        return f"{self.number:05d}"


def shards_of(pieces: Sequence[Piece], num_bytes: int = 0) -> list[Shard]:
    """Return shards of consecutive pieces with at most ``num_bytes`` of text. A larger piece is a shard by itself.

    If ``num_bytes`` is 0, the size of all pieces decides: enough shards for many workers, not too many for random
    reads.
    """
    most = num_bytes or min(max(sum(piece.num_bytes for piece in pieces) // _SHARDS, _SMALLEST), _LARGEST)
    runs: list[list[Piece]] = []
    size = 0
    for piece in pieces:
        if not runs or size + piece.num_bytes > most:
            runs.append([])
            size = 0
        runs[-1].append(piece)
        size += piece.num_bytes
    return [Shard(number, tuple(run)) for number, run in enumerate(runs)]


class Skipped(NamedTuple):
    """An item of a source that does not become a document. The manifest counts such items by reason."""

    where: str  # file and byte offset or record
    reason: str  # from a small fixed set, such as "redirect", "not UTF-8", "no text"


class Source(Protocol):
    """Interface of sources: reads documents.

    A source is a picklable frozen dataclass; its fields are the keys of ``config.corpus.options``.
    """

    def pieces(self) -> list[Piece]:
        """Return all pieces, in the order of the corpus. Raises ``UserError`` for a path that matches nothing."""
        ...

    def read(self, piece: Piece) -> Iterator[Document | Skipped]:
        """Yield the documents of ``piece``, in order; memory is bounded by the longest document.

        Raises:
          UserError: text cannot be read; the message names the file and the byte offset. A source may have an option
            to skip such text.
        """
        ...

    def fingerprint(self) -> str:
        """Return the hash of everything that decides the documents.

        The hash covers the settings, and the names and content (or sizes and versions) of files.
        """
        ...

    def describe(self) -> dict[str, Any]:
        """Return the description for the manifest: settings, number of files, revisions, licence."""
        ...


@dataclasses.dataclass(frozen=True)
class OwnSource:
    """Wraps a source from a user's own file, so that the fingerprint changes with the code of the file too.

    ``code`` is the recorded name of the file.
    """

    source: Source
    code: str

    def __post_init__(self) -> None:
        needed = ("pieces", "read", "fingerprint", "describe")
        if lacking := [name for name in needed if not callable(getattr(self.source, name, None))]:
            raise UserError(
                f"{catalogue.display_name(self.code)}: its Source has no method {', '.join(lacking)}; "
                f"a source has {', '.join(needed)}"
            )

    def pieces(self) -> list[Piece]:
        return self.source.pieces()

    def read(self, piece: Piece) -> Iterator[Document | Skipped]:
        return self.source.read(piece)

    def fingerprint(self) -> str:
        return hashlib.sha256(f"{self.code} {self.source.fingerprint()}".encode()).hexdigest()

    def describe(self) -> dict[str, Any]:
        return {**self.source.describe(), "code": self.code}


def documents(source: Source, pieces: Iterable[Piece] | None = None) -> Iterator[Document]:
    """Yield the documents of ``pieces`` (all pieces if None) of ``source``; ``Skipped`` items are left out."""
    for piece in source.pieces() if pieces is None else pieces:
        for item in source.read(piece):
            if isinstance(item, Document):
                yield item


def text_of(source: Source) -> list[str]:
    """Return sentences of about ``SAMPLED`` characters, from all over ``source``."""
    pieces = source.pieces()
    chosen = pieces[:: -(-len(pieces) // _SAMPLED_PIECES) or 1]
    return [text for piece in chosen for text in _first(source, piece, SAMPLED // len(chosen))]


def _first(source: Source, piece: Piece, size: int) -> Iterator[str]:
    for document in documents(source, [piece]):
        for sentence in document.sentences:
            if size <= 0:
                return
            size -= len(sentence)
            yield sentence
