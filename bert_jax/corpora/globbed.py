"""What sources of files share: finding the files that globs match, cutting them into pieces, hashing, describing."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Sequence
from typing import Any, ClassVar

from bert_jax import catalogue
from bert_jax.corpora.source import MARK, Piece, below
from bert_jax.corpora.unpacking import is_packed, readable
from bert_jax.errors import UserError
from bert_jax.storage import files
from bert_jax.storage.remote import RemotePath

RANGE_BYTES = 16 << 20  # the bytes of text in a piece, for files that can be cut
UNPACKED = 4  # approximate bytes of text per byte of a compressed file
CHECKSUMS = ("ETag", "etag", "crc32c", "md5Hash", "checksum")  # names of an object's checksum on different stores


class FileSource:
    """The base class of sources of files.

    A subclass is a frozen dataclass: its field ``paths`` names the files by globs, and all other fields, with the
    ``versions``, decide what documents are in them.
    """

    paths: tuple[str, ...]
    KINDS: ClassVar[str]  # the kind of files, as error messages name it

    def names(self) -> list[str]:
        """Return the sorted paths of the files. Raises ``UserError`` for a glob that matches none."""
        return _find(self.paths, self.KINDS)

    def versions(self) -> dict[str, str]:
        """Return the versions of the libraries on which the documents depend."""
        return {}

    def fingerprint(self) -> str:
        """Return the hash of the settings, the versions, and every file's name and content."""
        settings = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]
        del settings["paths"]
        return fingerprint(self.names(), (*settings.values(), *self.versions().values()))

    def describe(self) -> dict[str, Any]:
        """Return the manifest's description of the source."""
        names = self.names()
        facts = {"files": len(names), "file_bytes": sum(map(_size, names)), **self.versions()}
        own = dataclasses.asdict(self)  # type: ignore[call-overload]
        return {"source": catalogue.name_of(type(self).__module__), **own, **facts}


def _find(paths: Sequence[str], kinds: str) -> list[str]:
    """Return the sorted paths of the files that the globs ``paths`` match, with ``MARK`` after the folder they share.

    Args:
      kinds: the kind of files, as error messages name it.

    Raises:
      UserError: a glob matches no file, or there is no glob.
    """
    found: set[str] = set()
    for pattern in paths:
        matches = files.glob(pattern)
        if not matches:
            advice = f"check config.corpus.options.paths (globs of {kinds})"
            if files.as_path(pattern).is_dir():
                advice = f"it is a folder, write {os.path.join(pattern, '*')!r} for the files in it"
            raise UserError(f"no file matches {pattern!r}; {advice}")
        found.update(os.fspath(match) for match in matches)
    if not found:
        raise UserError(f"config.corpus.options.paths is empty; name at least one glob of {kinds}")
    shared = os.path.commonprefix([path.split("/")[:-1] for path in found])
    root = "/".join(shared) + MARK if shared else ""
    return [root + "/".join(path.split("/")[len(shared) :]) for path in sorted(found)]


def pieces(names: Sequence[str], *, cut: bool, cut_packed: Sequence[str] = ()) -> list[Piece]:
    """Return the pieces of the files: one per ``RANGE_BYTES`` of text in a file that can be cut, else one per file.

    If ``cut``, files can be cut if they are not compressed or have an ending of ``cut_packed``; otherwise none can.
    """
    result = []
    for name in names:
        size = _size(name)
        packed = is_packed(name)
        factor = UNPACKED if packed else 1
        whole = not cut or (packed and os.path.splitext(name)[1] not in cut_packed)
        step = RANGE_BYTES // factor
        starts = range(0, 1 if whole else max(size, 1), step)
        for start in starts[:-1]:
            result.append(Piece(name, start, start + step, step * factor))
        result.append(Piece(name, starts[-1], -1, (size - starts[-1]) * factor))
    return result


def fingerprint(names: Sequence[str], settings: object) -> str:
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
