"""The interface of sources, from which a corpus is read. A source is a file of this package with a class ``Source``.

A source is cut into pieces that are read independently, so that many workers can build one corpus without exchanging
documents. Pieces, their order and their documents depend only on the source, not on the workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol

from bert_jax.records import Document


class Piece(NamedTuple):
    """A part of a source: a file, a byte range of a file, or a run of records."""

    name: str  # a path or another key of the source; together with ``start`` it is unique in the source
    start: int = 0  # first byte or record; documents that begin in [start, stop) belong to the piece
    stop: int = -1  # -1: to the end
    num_bytes: int = 0  # about the bytes of text in it, by which pieces are put together into shards of even size


class Skipped(NamedTuple):
    """Something in a source that is not made a document. The manifest counts these by reason."""

    where: str  # file and byte offset or record
    reason: str  # from a small fixed set, such as "redirect", "not UTF-8", "no text"


class Source(Protocol):
    """Reads documents. It is a picklable frozen dataclass, whose fields are ``config.corpus.options``."""

    def pieces(self) -> list[Piece]:
        """Return all pieces, in the order of the corpus. Raises ``UserError`` for a path that matches nothing."""
        ...

    def read(self, piece: Piece) -> Iterator[Document | Skipped]:
        """Yield the documents of ``piece``, in order; memory is bounded by the longest document.

        Raises:
          UserError: text cannot be read; names the file and the byte offset. A source may have an option to skip it.
        """
        ...

    def fingerprint(self) -> str:
        """Return the hash of everything that decides the documents.

        That is the settings, and the names and content (or sizes and versions) of files.
        """
        ...

    def describe(self) -> dict[str, Any]:
        """Return the description for the manifest and the data card: settings, number of files, revisions, licence."""
        ...


def documents(source: Source, pieces: Iterable[Piece] | None = None) -> Iterator[Document]:
    """Yield the documents of ``pieces`` of ``source`` (None: of all pieces), without those that it skips."""
    for piece in source.pieces() if pieces is None else pieces:
        for item in source.read(piece):
            if isinstance(item, Document):
                yield item
