"""What a corpus is read from. A source is one file of this package with a class ``Source``.

A source is cut into pieces that are read each by itself, so that many workers build one corpus and none of them hands
a document to another. Pieces, their order and what is read from each depend on the source alone, never on who reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol

from bert_jax.records import Document


class Piece(NamedTuple):
    """A part of a source: a file, a byte range of one, or a run of records."""

    name: str  # a path, or whatever the source finds it by; with ``start`` unique in the source
    start: int = 0  # first byte or record; what begins in [start, stop) belongs to the piece
    stop: int = -1  # -1: to the end
    num_bytes: int = 0  # of text in it, about: pieces are put together into shards of even size


class Skipped(NamedTuple):
    """Something that a source could not make a document of, or should not. The manifest counts them by reason."""

    where: str  # file and byte offset or record
    reason: str  # from a small fixed set, such as "redirect", "not UTF-8", "no text"


class Source(Protocol):
    """Where documents come from. A frozen dataclass whose fields are ``config.corpus.options``; it pickles."""

    def pieces(self) -> list[Piece]:
        """Return all pieces, in the order of the corpus. Raises ``UserError`` for a path that matches nothing."""
        ...

    def read(self, piece: Piece) -> Iterator[Document | Skipped]:
        """Yield what ``piece`` holds, in order, in memory bounded by the longest document. Text that cannot be read
        raises ``UserError`` with the file and the byte offset, unless the source is told to skip it."""
        ...

    def fingerprint(self) -> str:
        """Return the hash of all that decides the documents: settings, and names and content (or sizes and versions) of
        files."""
        ...

    def describe(self) -> dict[str, Any]:
        """Return what the manifest and the data card say of it: settings, number of files, revisions, licence if
        known."""
        ...


def documents(source: Source, pieces: Iterable[Piece] | None = None) -> Iterator[Document]:
    """Yield the documents of ``pieces`` of ``source``, or of all of it, piece by piece, without what it skips."""
    for piece in source.pieces() if pieces is None else pieces:
        for item in source.read(piece):
            if isinstance(item, Document):
                yield item
