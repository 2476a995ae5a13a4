"""Reads files safely: a path may name a pipe or a device such as ``/dev/zero``, from which reading would never end."""

from __future__ import annotations

import errno
import io
import json
import os
import stat
from typing import IO, Any

from etils import epath

from bert_jax.errors import UserError
from bert_jax.storage.remote import RemotePath


class NotPlainError(OSError):
    """Raised if a path that should name a file names a pipe, a socket or a device."""

    def __init__(self, path: str | os.PathLike[str]):
        super().__init__(errno.EINVAL, "is a pipe, a socket or a device", os.fspath(path))


def open_plain(path: str | os.PathLike[str]) -> io.BufferedReader:
    """Open a file to read its bytes; ``path`` is local, or a path of an object store.

    Raises:
      NotPlainError: ``path`` is a pipe, a socket or a device, or a link to one.
      OSError: ``path`` is a folder, is missing or is not readable; a store does not answer.
    """
    return path.open("rb") if isinstance(path, RemotePath) else os.fdopen(_descriptor(path, os.O_RDONLY), "rb")


def lock_file(path: str | os.PathLike[str]) -> IO[str]:
    """Open a local file, or create it, to lock it and to note who holds it. Raises the errors of ``open_plain``."""
    return os.fdopen(_descriptor(path, os.O_RDWR | os.O_CREAT), "r+")


def _descriptor(path: str | os.PathLike[str], flags: int) -> int:
    """Return the descriptor of a plain file, opened with ``flags``. Raises the errors of ``open_plain``."""
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK, 0o666)  # otherwise opening a pipe would wait for a writer
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            raise NotPlainError(path) from error
        raise
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    raise NotPlainError(path)


def utf8_text(path: epath.Path, shown: str, what: str) -> str:
    """Return the text of a UTF-8 file, without a byte order mark.

    Raises ``UserError`` with the byte offset if the file is not UTF-8; ``shown`` is the path that the message names and
    ``what`` says what the file holds.
    """
    try:
        return read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{shown} is not UTF-8 at byte offset {error.start}; save the {what} as UTF-8") from error


def check_plain(path: str | os.PathLike[str]) -> None:
    """Check that a local file can be opened by a library, to which a pipe would be a wait without end.

    Raises the errors of ``open_plain``.
    """
    os.close(_descriptor(path, os.O_RDONLY))


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a file. Raises the errors of ``open_plain``."""
    if isinstance(path, RemotePath):
        return path.read_bytes()  # one request
    with open_plain(path) as file:
        return file.read()


def has_content(path: str | os.PathLike[str], content: bytes) -> bool:
    """Return whether the content of a file is ``content``; False if the file is missing or cannot be read."""
    try:
        return read_bytes(path) == content
    except OSError:
        return False


def read_object(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Return the object in a JSON file; None if the file is missing, cannot be read or holds something else."""
    try:
        return parse_object(read_bytes(path))
    except OSError:
        return None


def parse_object(text: str | bytes) -> dict[str, Any] | None:
    """Return the object in a JSON text; None if the text is not JSON or holds something else."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None
