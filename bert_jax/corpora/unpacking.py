"""Reads the bytes of local or remote files, and unpacks a file whose name has the ending of a compressed file."""

from __future__ import annotations

import bz2
import contextlib
import errno
import gzip
import lzma
import os
import re
import zlib
from collections.abc import Iterator
from typing import IO, Any

from bert_jax.corpora.bad_text import BadTextError
from bert_jax.corpora.source import display_path
from bert_jax.errors import PassingError, UserError
from bert_jax.storage import files, reading
from bert_jax.storage.retries import is_passing

_HEAD_BYTES = 8000
PACKED_BYTES = 1 << 16
STREAM = re.compile(rb"BZh[1-9]1AY&SY")  # the first bytes of a bz2 stream that is not empty
_DAMAGE = (EOFError, OSError, lzma.LZMAError, zlib.error)  # the errors of the libraries that unpack


def _zstandard(file: IO[bytes]) -> Any:
    import pyarrow

    return pyarrow.CompressedInputStream(pyarrow.PythonFile(file), "zstd")


UNPACKERS: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open, ".zst": _zstandard}

_TO_TEXT = "save it as plain text, CSV or JSON Lines"
# The first bytes of a file that is not text -> what the file is, and what to do.
_SIGNS = {
    rb"\x1f\x8b\x08": ("compressed by gzip", "let its name end in .gz"),
    rb"BZh[1-9](1AY&SY|\x17rE8P\x90)": ("compressed by bzip2", "let its name end in .bz2"),
    rb"\xfd7zXZ\0": ("compressed by xz", "let its name end in .xz"),
    rb"\x28\xb5\x2f\xfd": ("compressed by zstd", "let its name end in .zst"),
    rb"PK\x03\x04": ("a zip archive, as .xlsx, .docx and .odt files are", _TO_TEXT),
    rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": ("a file of an Office program, such as .xls or .doc", _TO_TEXT),
    rb"%PDF-\d": ("a PDF file", _TO_TEXT),
    rb"\{\\rtf\d?": ("an RTF file", _TO_TEXT),
    rb"PAR1[\0-\x1f]": ("a Parquet file", f"for a corpus take --config.corpus.source=parquet; else {_TO_TEXT}"),
    rb"ARROW1\0\0": ("an Arrow file", _TO_TEXT),
    rb"SQLite format 3\0": ("an SQLite database", _TO_TEXT),
}


def is_packed(path: str) -> bool:
    """Return whether the file is compressed, so that it can be read only from its start."""
    return os.path.splitext(path)[1] in UNPACKERS


class Unpacked:
    """A reader of the unpacked bytes of a file. ``head`` holds the first bytes, which ``read`` returns as well.

    Raises ``BadTextError`` if these are of a format that is not text, such as PDF.
    """

    def __init__(self, path: str, file: Any) -> None:
        self.path = path
        self._file = file
        self._position = 0  # the position in the unpacked bytes of ``file``
        self._ahead = self.head = self._read(_HEAD_BYTES)
        for sign, (what, advice) in _SIGNS.items():
            if re.match(sign, self.head):
                message = f"{display_path(path)} is {what}, not plain text; {advice}"
                raise BadTextError(f"{path}@0", "not plain text", message)

    def read(self, size: int) -> bytes:
        """Return the next bytes, at most ``size``; b"" at the end. Raises ``BadTextError`` for a damaged archive."""
        if self._ahead:
            ahead, self._ahead = self._ahead[:size], self._ahead[size:]
            return ahead
        return self._read(size)

    def seek(self, position: int) -> None:
        """Move to the byte ``position``; only possible in a file that is not compressed."""
        self._file.seek(position)
        self._position, self._ahead = position, b""

    def _read(self, size: int) -> bytes:
        try:
            with readable(self.path):
                block = self._file.read(size)
        except _DAMAGE as error:
            raise _damaged(self.path, self._position, error) from error
        self._position += len(block)
        return block


def _damaged(path: str, position: int, error: object) -> BadTextError:
    message = f"{path} is damaged after {position} unpacked bytes ({error}); replace the file"
    return BadTextError(f"{path}@{position}", "damaged file", message)


@contextlib.contextmanager
def readable(path: str) -> Iterator[None]:
    """Context manager that turns an error of the disk or the store into an error that names the file ``path``.

    The error of a damaged archive, which has no ``errno``, and the error of a pipe or device stay.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None or isinstance(error, reading.NotPlainError):
            raise
        advice = {errno.EISDIR: "name a file", errno.EIO: "its disk fails: take another copy of the file"}
        what = f"cannot read {display_path(path)}: {error.strerror or error}"
        error_class = PassingError if is_passing(error) else UserError
        raise error_class(f"{what}; {advice.get(error.errno, 'check its permissions')}") from error


@contextlib.contextmanager
def open_unpacked(path: str) -> Iterator[Unpacked]:
    """Context manager that opens a file to read its unpacked bytes. Raises ``UserError`` if it cannot be opened."""
    with contextlib.ExitStack() as stack:
        with readable(path):
            file = stack.enter_context(reading.open_plain(files.as_path(path)))
        unpack = UNPACKERS.get(os.path.splitext(path)[1])
        yield Unpacked(path, stack.enter_context(contextlib.closing(unpack(file))) if unpack else file)


def bz2_streams(path: str, start: int, stop: int) -> Iterator[tuple[bytes, bool]]:
    """Yield (unpacked bytes, inside) for the bz2 streams that begin at or after byte ``start`` of a packed file.

    ``inside`` is whether the stream begins before byte ``stop``; a ``stop`` of -1 is the end of the file.

    Raises:
      BadTextError: the archive is damaged.
    """
    with readable(path), reading.open_plain(files.as_path(path)) as file:
        packed, position = _first_stream(file, start)
        text_bytes = 0
        while packed:
            inside = stop < 0 or position < stop
            unpacker = bz2.BZ2Decompressor()
            while not unpacker.eof:
                try:
                    text = unpacker.decompress(packed)
                    if not packed:
                        raise EOFError("the file ends in the middle of a stream")
                except _DAMAGE as error:
                    raise _damaged(path, text_bytes, f"{error}; from byte {position} of the file on") from error
                position += len(packed)
                text_bytes += len(text)
                if text:
                    yield text, inside
                packed = b"" if unpacker.eof else file.read(PACKED_BYTES)
            position -= len(unpacker.unused_data)
            packed = unpacker.unused_data or file.read(PACKED_BYTES)
            if packed and not packed.startswith(b"BZh"[: len(packed)]):
                return  # like bzip2, ignore all that follows the last stream


def _first_stream(file: IO[bytes], start: int) -> tuple[bytes, int]:
    """Return (first bytes, position) of the first bz2 stream that begins at or after byte ``start``."""
    file.seek(start)
    packed = b""
    while block := file.read(PACKED_BYTES):
        packed += block
        found = STREAM.search(packed)
        if found:
            return packed[found.start() :], start + found.start()
        start += max(0, len(packed) - 9)
        packed = packed[-9:]
    return b"", start
