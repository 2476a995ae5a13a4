"""A path on an object store, for any URL that fsspec reads: ``gs://`` (extra ``gcs``), ``s3://`` (extra ``s3``).

Tests use fsspec's in-memory file system (``memory://``) in place of a store."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import posixpath
from collections.abc import Iterator
from typing import Any

from bert_jax.errors import UserError
from bert_jax.storage import retries

BLOCK_BYTES = 5 << 20  # size of the pieces in which an open file is read
_CONNECT_SECONDS, SILENT_SECONDS = 30.0, 60.0  # gcsfs gives up a request after these times; by default it never does


class RemotePath(os.PathLike[str]):
    """A path on an object store, with the part of ``epath.Path``'s interface that this package uses."""

    def __init__(self, url: str | os.PathLike[str]) -> None:
        self.scheme, _, location = os.fspath(url).partition("://")
        self.location = posixpath.normpath(location.strip("/")).removeprefix(".")

    @property
    def _fs(self) -> Any:
        import fsspec

        try:
            return fsspec.filesystem(self.scheme, **_options(self.scheme))
        except (ImportError, ValueError) as error:
            raise UserError(f"cannot open {self}: {error}; gs:// needs the extra gcs, s3:// the extra s3") from error

    def _ask(self, what: str, *arguments: Any, raw: tuple[type[OSError], ...] = (), **options: Any) -> Any:
        """Call the method ``what`` of fsspec's file system for this URL, with retries, and return the store's answer.

        See ``retries.ask``.
        """
        url = os.fspath(self)
        return retries.ask(url, lambda: getattr(self._fs, what)(url, *arguments, **options), raw)

    def __fspath__(self) -> str:
        return f"{self.scheme}://{self.location}"

    __str__ = __fspath__

    def __repr__(self) -> str:
        return f"RemotePath({os.fspath(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and os.fspath(self) == os.fspath(other)

    def __hash__(self) -> int:
        return hash(os.fspath(self))

    def __lt__(self, other: RemotePath) -> bool:
        return os.fspath(self) < os.fspath(other)

    def __truediv__(self, part: str | os.PathLike[str]) -> RemotePath:
        return RemotePath(f"{self.scheme}://{posixpath.join(self.location, os.fspath(part))}")

    @property
    def name(self) -> str:
        return posixpath.basename(self.location)

    @property
    def suffix(self) -> str:
        return posixpath.splitext(self.location)[1]

    @property
    def parent(self) -> RemotePath:
        return RemotePath(f"{self.scheme}://{posixpath.dirname(self.location)}")

    @property
    def facts(self) -> dict[str, Any]:
        """Return what the store says about the object or folder: ``size``, ``type``, often a checksum."""
        return self._ask("info")  # type: ignore[no-any-return]

    @property
    def size(self) -> int:
        """Return the size of the object in bytes."""
        return int(self.facts["size"])

    def _type(self) -> str | None:
        """Return "file" or "directory"; None if nothing is there.

        This differs from fsspec's ``isdir`` and ``isfile``, which return False even if the store does not answer.
        """
        try:
            return str(self.facts["type"])
        except FileNotFoundError:
            return None

    def exists(self) -> bool:
        return self._type() is not None

    def is_dir(self) -> bool:
        return self._type() == "directory"

    def is_file(self) -> bool:
        return self._type() == "file"

    def iterdir(self) -> Iterator[RemotePath]:
        for entry in sorted(self._ask("ls", detail=False)):
            name = posixpath.basename(entry.rstrip("/"))
            if name != self.name:  # some stores list the folder itself
                yield self / name

    def names(self) -> list[str]:
        """Return the names in the folder as the store has them now; [] if there is no folder.

        The store is always asked, because the list that its client caches may be out of date.
        """
        try:
            entries = self._ask("ls", detail=False, refresh=True)
        except FileNotFoundError:
            return []
        return sorted({posixpath.basename(entry.rstrip("/")) for entry in entries} - {self.name, ""})

    def glob(self, pattern: str) -> Iterator[RemotePath]:
        for entry in sorted((self / pattern)._ask("glob")):
            yield RemotePath(f"{self.scheme}://{entry}")

    def open(self, mode: str = "rb") -> io.BufferedReader:
        """Open an object to read it piece by piece; each piece is a request."""
        if mode != "rb":
            raise ValueError(f"mode {mode!r}: only reading is possible; write a whole object with write_bytes or put")
        return io.BufferedReader(_Reader(self), BLOCK_BYTES)

    def read_bytes(self) -> bytes:
        return self._ask("cat_file")  # type: ignore[no-any-return]

    def read_text(self, encoding: str = "utf-8") -> str:
        return self.read_bytes().decode(encoding)

    def write_bytes(self, data: bytes) -> None:
        self._ask("pipe_file", data)

    def put(self, source: str | os.PathLike[str]) -> None:
        """Upload a local file as this object, whole or not at all."""
        url = os.fspath(self)
        retries.ask(url, lambda: self._fs.put_file(os.fspath(source), url))

    def get(self, target: str | os.PathLike[str]) -> None:
        """Download the object to a local file."""
        self._ask("get_file", os.fspath(target))

    @property
    def creates(self) -> bool:
        """Return whether the store's client has a request that creates an object and fails if the object exists.

        Otherwise ``create_bytes`` uses fsspec's general method, which first looks whether the object exists.
        """
        from fsspec.spec import AbstractFileSystem

        return getattr(self._fs.pipe_file, "__func__", None) is not AbstractFileSystem.pipe_file

    def create_bytes(self, data: bytes) -> None:
        """Write an object only if it is absent; the store checks this.

        A store that cannot check this overwrites the object, or raises an ``OSError``.

        Raises:
          FileExistsError: the object exists; perhaps an earlier try of the same request has written it.
        """
        self._ask("pipe_file", data, mode="create", raw=(OSError,))

    def write_text(self, text: str, encoding: str = "utf-8") -> None:
        self.write_bytes(text.encode(encoding))

    def mkdir(self, parents: bool = False, exist_ok: bool = False) -> None:
        """Do nothing: an object store has no folders, only names with slashes."""

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove the object. A missing object is never an error, because an earlier try may have removed it."""
        with contextlib.suppress(FileNotFoundError):
            self._ask("rm_file")

    def rmtree(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._ask("rm", recursive=True)

    def rename(self, target: str | os.PathLike[str]) -> None:
        """Copy the object, then delete it: an object store has no atomic rename."""
        self._ask("mv", os.fspath(target), recursive=True)


class _Reader(io.RawIOBase):
    """A raw file that reads an object of the store; it can be read from any position."""

    def __init__(self, path: RemotePath) -> None:
        self._path, self._size, self._position = path, path.size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        return self._position

    def readinto(self, buffer: Any) -> int:
        start, stop = self._position, min(self._position + len(buffer), self._size)
        if stop <= start:
            return 0
        url = os.fspath(self._path)
        data = retries.ask(url, lambda: self._read(url, start, stop))
        buffer[: len(data)] = data
        self._position = stop
        return len(data)

    def _read(self, url: str, start: int, stop: int) -> bytes:
        data: bytes = self._path._fs.cat_file(url, start=start, end=stop)
        if len(data) != stop - start:
            raise ConnectionError(f"{len(data)} of {stop - start} bytes came")
        return data


def _options(scheme: str) -> dict[str, Any]:
    """Return options for the client of a store, in addition to the options that the user has configured."""
    if scheme not in ("gs", "gcs"):
        return {}
    try:
        import aiohttp
    except ImportError:  # then gcsfs, which needs aiohttp, is missing too, and fsspec says so
        return {}
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)  # gcsfs logs a traceback for each error that it raises
    limits = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=SILENT_SECONDS)
    return {"requests_timeout": limits}
