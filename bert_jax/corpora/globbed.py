"""Finds the files that globs match: their order, names, sizes, pieces and hash, for the sources that read files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence

from bert_jax.corpora.names import MARK, below
from bert_jax.corpora.source import Piece
from bert_jax.corpora.unpacking import is_packed
from bert_jax.errors import UserError
from bert_jax.storage import files
from bert_jax.storage.remote import RemotePath

RANGE_BYTES = 16 << 20  # the bytes of a piece of a file that can be cut
UNPACKED = 4  # about the bytes of text in a byte of a compressed file
CHECKSUMS = ("ETag", "etag", "crc32c", "md5Hash", "checksum")  # names of an object's checksum on different stores


def find(paths: Sequence[str], kinds: str) -> list[str]:
    """Return every file that ``paths`` (globs) match, once, in the order of the names, with ``MARK`` in it.

    Args:
      kinds: the kind of the files, as errors name it.

    Raises:
      UserError: a glob matches no file, or there is no glob.
    """
    found: set[str] = set()
    for pattern in paths:
        matches = files.glob(pattern)
        if not matches:
            raise UserError(f"no file matches {pattern!r}; check config.corpus.options.paths (globs of {kinds})")
        found.update(os.fspath(match) for match in matches)
    if not found:
        raise UserError(f"config.corpus.options.paths is empty; name at least one glob of {kinds}")
    shared = os.path.commonprefix([path.split("/")[:-1] for path in found])
    root = "/".join(shared) + MARK if shared else ""
    return [root + "/".join(path.split("/")[len(shared) :]) for path in sorted(found)]


def pieces(names: Sequence[str], *, cut: bool, cut_packed: Sequence[str] = ()) -> list[Piece]:
    """Return the pieces of the files: one per file, or one every ``RANGE_BYTES`` of a file that can be cut.

    With ``cut`` these are files that are not compressed, and compressed ones with an ending of ``cut_packed``.
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
    """Return the hash of ``settings`` and of every file's name and content, but not of its folder or time.

    Local files are read (about 1.5 GB/s). For an object with a checksum its size and the checksum stand for its
    content, so a local copy of such a corpus has another hash.
    """
    digest = hashlib.sha256(repr(settings).encode("utf-8", "surrogateescape"))
    for name in names:
        digest.update(f"\n{_content(name)}  {below(name)}".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def total_bytes(names: Sequence[str]) -> int:
    return sum(_size(name) for name in names)


def _content(name: str) -> str:
    if files.is_remote(name):
        facts = RemotePath(name).facts
        for key in CHECKSUMS:
            if facts.get(key):
                return f"{facts['size']} {facts[key]}"
    return files.sha256(name)


def _size(name: str) -> int:
    return files.size(files.as_path(name))
