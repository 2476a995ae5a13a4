"""Reads files that anything may stand in the place of: to read a pipe, or ``/dev/zero``, would never end."""

from __future__ import annotations

import errno
import os
import stat
from typing import IO

from bert_jax.storage.remote import RemotePath


class NotPlainError(OSError):
    """Something else than a file has a file's name."""

    def __init__(self, path: str | os.PathLike[str]):
        super().__init__(errno.EINVAL, "is a pipe, a socket or a device", os.fspath(path))


def opened(path: str | os.PathLike[str]) -> IO[bytes]:
    """Open a file to read its bytes; ``path`` is local, or a path of an object store.

    Raises:
      NotPlainError: it is a pipe, a socket or a device, or a link to one.
      OSError: it is a folder, missing or not readable; a store does not answer.
    """
    if isinstance(path, RemotePath):
        return path.open("rb")
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # to open a pipe would wait for a writer
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        if not stat.S_ISREG(mode):
            raise NotPlainError(path)
        return os.fdopen(descriptor, "rb")
    except OSError:
        os.close(descriptor)
        raise


def lock_file(path: str | os.PathLike[str]) -> IO[str]:
    """Open a local file to lock it and to write who holds it; it is made if it is not there. Raises as ``opened``."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            raise NotPlainError(path) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotPlainError(path)
    return os.fdopen(descriptor, "r+")


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a file; raises as ``opened``."""
    if isinstance(path, RemotePath):
        return path.read_bytes()  # one request
    with opened(path) as file:
        return file.read()


def read_text(path: str | os.PathLike[str]) -> str:
    """Return the text of a UTF-8 file; raises as ``opened``, and ``ValueError`` if it is no such text."""
    return read_bytes(path).decode("utf-8")


def holds(path: str | os.PathLike[str], content: bytes) -> bool:
    """Return whether a file has this content; False if it is missing or cannot be read."""
    try:
        return read_bytes(path) == content
    except OSError:
        return False
