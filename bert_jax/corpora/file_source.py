"""The base class of sources of files: finds the files that globs match, cuts them into pieces, hashes them."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, TypeVar

from bert_jax.corpora.bad_text import BadText, BadTextError, is_foreign
from bert_jax.corpora.source import MARK, PIECE_BYTES, Piece, Skipped, below
from bert_jax.corpora.unpacking import Unpacked, is_packed, open_unpacked, readable
from bert_jax.errors import UserError
from bert_jax.parts import catalogue
from bert_jax.records import Document
from bert_jax.storage import files, globs
from bert_jax.storage.remote import RemotePath

_UNPACKED = 4  # approximate bytes of text per byte of a compressed file
CHECKSUMS = ("ETag", "etag", "crc32c", "md5Hash", "checksum")  # names of an object's checksum on different stores

_Item = TypeVar("_Item")


class FileSource:
    """The base class of sources of files.

    A subclass is a frozen dataclass: its field ``paths`` names the files by globs, and all other fields, with the
    ``versions``, decide what documents are in them.
    """

    paths: tuple[str, ...]
    bad_text: BadText
    FILES: ClassVar[str]  # which files these are, for error messages

    def names(self) -> list[str]:
        """Return the sorted paths of the files, with ``MARK`` after the folder they share.

        Raises:
          UserError: a glob matches no file, or there is no glob.
        """
        paths: set[str] = set()
        for pattern in self.paths:
            matches = globs.matches(pattern)
            if not matches:
                advice = f"check config.corpus.options.paths (globs of {self.FILES})"
                if files.as_path(pattern).is_dir():
                    advice = f"it is a folder, write {os.path.join(pattern, '*')!r} for the files in it"
                raise UserError(f"no file matches {pattern!r}; {advice}")
            paths.update(os.fspath(match) for match in matches)
        if not paths:
            raise UserError(f"config.corpus.options.paths is empty; name at least one glob of {self.FILES}")
        shared = os.path.commonprefix([path.split("/")[:-1] for path in paths])
        root = "/".join(shared) + MARK if shared else ""
        return [root + "/".join(path.split("/")[len(shared) :]) for path in sorted(paths)]

    def pieces(self) -> list[Piece]:
        """Return the pieces of the files, in order of name.

        A file that can be cut has a piece for each ``PIECE_BYTES`` of text; any other file is one piece.
        """
        result = []
        for name in self.names():
            size, factor = _size(name), _UNPACKED if is_packed(name) else 1
            step = PIECE_BYTES // factor
            starts = range(0, size, step) if size > step and self.can_cut(name) else range(1)
            for start in starts[:-1]:
                result.append(Piece(name, start, start + step, step * factor))
            result.append(Piece(name, starts[-1], -1, (size - starts[-1]) * factor))
        return result

    def read(self, piece: Piece) -> Iterator[Document | Skipped]:
        """Yield the documents of ``piece``. If the first piece of a file has none, a ``Skipped`` counts the file."""
        nothing = piece.start == 0
        for item in self.items(piece) if piece.num_bytes else ():
            nothing = False
            yield item
        if nothing:
            yield Skipped(below(piece.name), "no text" if piece.num_bytes else "empty file")

    def items(self, piece: Piece) -> Iterator[Document | Skipped]:
        """Yield the documents of ``piece``, and a ``Skipped`` for each item that is left out."""
        raise NotImplementedError

    def unpacked(self, piece: Piece, read: Callable[[Unpacked, Piece], Iterator[_Item]]) -> Iterator[_Item | Skipped]:
        """Yield the items that ``read`` finds in ``piece`` of an opened file.

        If ``bad_text`` is "skip", a file that is no text gives a ``Skipped``, and so does an end that cannot be read.
        """
        try:
            with open_unpacked(piece.name) as file:
                if self.bad_text == "error" or not is_foreign(file.head):
                    yield from read(file, piece)
                elif piece.start == 0:
                    yield Skipped(below(piece.name), "not a text file")
        except BadTextError as error:
            yield error.skip_or_raise(self.bad_text)

    def can_cut(self, name: str) -> bool:
        """Return whether ``read`` can begin anywhere in the file ``name``."""
        return not is_packed(name)

    def versions(self) -> dict[str, str]:
        """Return the versions of the libraries on which the documents depend."""
        return {}

    def fingerprint(self) -> str:
        """Return the hash of the settings, the versions, and every file's name and content."""
        settings = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]
        del settings["paths"]
        return hash_files(self.names(), (*settings.values(), *self.versions().values()))

    def describe(self) -> dict[str, Any]:
        names = self.names()
        facts = {"files": len(names), "file_bytes": sum(map(_size, names)), **self.versions()}
        own = dataclasses.asdict(self)  # type: ignore[call-overload]
        return {"source": catalogue.name_of(type(self).__module__), **own, **facts}


def hash_files(names: Sequence[str], settings: object) -> str:
    """Return the hash of ``settings`` and of every file's name and content. Folders and times do not matter.

    Local files are read (about 1.5 GB/s). A remote object with a checksum is hashed by its size and this checksum
    instead of its content, so a local copy of such a corpus has another hash.
    """
    digest = hashlib.sha256(repr(settings).encode("utf-8", "surrogateescape"))
    for name in names:
        digest.update(f"\n{_content(name)}  {below(name)}".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _content(name: str) -> str:
    if files.is_remote(name):
        facts = RemotePath(name).facts
        for key in CHECKSUMS:
            if facts.get(key):
                return f"{facts['size']} {facts[key]}"
    with readable(name):
        return files.sha256(name)


def _size(name: str) -> int:
    return files.size(files.as_path(name))
