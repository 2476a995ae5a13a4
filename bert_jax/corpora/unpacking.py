"""Bytes of files, unpacked by the ending of their names, local or on an object store."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
import os
import zlib
from collections.abc import Iterator
from typing import IO, Any

from bert_jax import files
from bert_jax.corpora.bad_text import BadTextError
from bert_jax.errors import UserError

HEAD_BYTES = 8000
DAMAGE = (EOFError, OSError, lzma.LZMAError, zlib.error)  # of the libraries that unpack


def _zstandard(file: IO[bytes]) -> Any:
    import pyarrow

    return pyarrow.CompressedInputStream(pyarrow.PythonFile(file), "zstd")


UNPACKERS: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open, ".zst": _zstandard}


def is_packed(path: str) -> bool:
    """Whether the file is compressed, so that it can only be read from its first byte on."""
    return os.path.splitext(path)[1] in UNPACKERS


class Unpacked:
    """The unpacked bytes of a file. ``head`` has the first of them; reading starts at 0."""

    def __init__(self, path: str, file: Any) -> None:
        self.path = path
        self._file = file
        self._position = 0  # of the file below
        self._ahead = self.head = self._read(HEAD_BYTES)

    def read(self, size: int) -> bytes:
        """At most ``size`` bytes more, none at the end. Raises ``BadTextError`` for a damaged archive."""
        if self._ahead:
            ahead, self._ahead = self._ahead[:size], self._ahead[size:]
            return ahead
        return self._read(size)

    def seek(self, position: int) -> None:
        """Go to a byte of a file that is not compressed."""
        self._file.seek(position)
        self._position, self._ahead = position, b""

    def _read(self, size: int) -> bytes:
        try:
            block = self._file.read(size)
        except DAMAGE as error:
            raise BadTextError(
                f"{self.path}@{self._position}",
                "damaged file",
                f"{self.path} is damaged after {self._position} unpacked bytes ({error}); replace the file",
            ) from error
        self._position += len(block)
        return block


@contextlib.contextmanager
def unpacked(path: str) -> Iterator[Unpacked]:
    """The file's bytes, unpacked. Raises ``UserError`` if it cannot be opened."""
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(files.as_path(path).open("rb"))
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror or error}; check its permissions") from error
        unpack = UNPACKERS.get(os.path.splitext(path)[1])
        yield Unpacked(path, stack.enter_context(contextlib.closing(unpack(file))) if unpack else file)
