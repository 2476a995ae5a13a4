"""A path on an object store. Every URL goes through fsspec, so that its in-memory file system (``memory://``) proves
in the tests what ``gs://`` (extra ``gcs``) and ``s3://`` (extra ``s3``) do."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import posixpath
from collections.abc import Iterator
from typing import IO, Any

from bert_jax.errors import UserError
from bert_jax.storage import retries

BLOCK_BYTES = 5 << 20  # of a file that is read piece by piece
CONNECT_SECONDS, SILENT_SECONDS = 30.0, 60.0  # after which gcsfs gives a request up; of itself it never does


class RemotePath(os.PathLike[str]):
    """A URL with the part of ``epath.Path``'s interface that this package uses."""

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
        """What the store answers to a request that may be repeated; see ``retries.asked``."""
        url = os.fspath(self)
        return retries.asked(url, lambda: getattr(self._fs, what)(url, *arguments, **options), raw)

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
        """What the store says of an object or a folder: ``size``, ``type``, often a checksum."""
        return self._ask("info")  # type: ignore[no-any-return]

    @property
    def size(self) -> int:
        """Bytes."""
        return int(self.facts["size"])

    def _type(self) -> str | None:
        """``file`` or ``directory``; None if it is not there. ``isdir`` and the like of fsspec say that of a store that
        does not answer, too."""
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

    def listed(self) -> list[str]:
        """Names in the folder, as the store has them now: its client may remember an older list. Empty if there is
        none."""
        try:
            entries = self._ask("ls", detail=False, refresh=True)
        except FileNotFoundError:
            return []
        return sorted({posixpath.basename(entry.rstrip("/")) for entry in entries} - {self.name, ""})

    def glob(self, pattern: str) -> Iterator[RemotePath]:
        for entry in sorted((self / pattern)._ask("glob")):
            yield RemotePath(f"{self.scheme}://{entry}")

    def open(self, mode: str = "rb") -> IO[bytes]:
        """Open an object to read it piece by piece; each piece is a request of its own."""
        if mode != "rb":
            raise ValueError(f"mode {mode!r}: an object is written whole, by write_bytes or put")
        return io.BufferedReader(_Reader(self), BLOCK_BYTES)

    def read_bytes(self) -> bytes:
        return self._ask("cat_file")  # type: ignore[no-any-return]

    def read_text(self, encoding: str = "utf-8") -> str:
        return self.read_bytes().decode(encoding)

    def write_bytes(self, data: bytes) -> None:
        self._ask("pipe_file", data)

    def put(self, source: str | os.PathLike[str]) -> None:
        """Become a copy of a local file, whole or not at all."""
        url = os.fspath(self)
        retries.asked(url, lambda: self._fs.put_file(os.fspath(source), url))

    def get(self, target: str | os.PathLike[str]) -> None:
        """Copy an object to a local file."""
        self._ask("get_file", os.fspath(target))

    @property
    def creates(self) -> bool:
        """Whether the client of this store has a request for ``create_bytes``; else it looks, and then writes."""
        from fsspec.spec import AbstractFileSystem

        return getattr(self._fs.pipe_file, "__func__", None) is not AbstractFileSystem.pipe_file

    def create_bytes(self, data: bytes) -> None:
        """Write an object only if it is absent, which the store decides. Raises ``FileExistsError`` if it is there, by
        a request that was repeated perhaps; a store that cannot do so overwrites it, or raises an ``OSError``."""
        self._ask("pipe_file", data, mode="create", raw=(OSError,))

    def write_text(self, text: str, encoding: str = "utf-8") -> None:
        self.write_bytes(text.encode(encoding))

    def mkdir(self, parents: bool = False, exist_ok: bool = False) -> None:
        """Nothing: an object store has no folders, only names with slashes."""

    def unlink(self, missing_ok: bool = False) -> None:
        """Nothing, where it is not there: a request that is repeated does not tell."""
        with contextlib.suppress(FileNotFoundError):
            self._ask("rm_file")

    def rmtree(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._ask("rm", recursive=True)

    def rename(self, target: str | os.PathLike[str]) -> None:
        """Copies and deletes: an object store has nothing better, so this is not atomic."""
        self._ask("mv", os.fspath(target), recursive=True)


class _Reader(io.RawIOBase):
    """Reads an object from any byte on."""

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
        data = retries.asked(url, lambda: self._read(url, start, stop))
        buffer[: len(data)] = data
        self._position = stop
        return len(data)

    def _read(self, url: str, start: int, stop: int) -> bytes:
        data: bytes = self._path._fs.cat_file(url, start=start, end=stop)
        if len(data) != stop - start:
            raise ConnectionError(f"{len(data)} of {stop - start} bytes came")
        return data


def _options(scheme: str) -> dict[str, Any]:
    """What a client is told beside what the user has configured for it."""
    if scheme not in ("gs", "gcs"):
        return {}
    try:
        import aiohttp
    except ImportError:  # gcsfs, which needs it, is not there either, as fsspec will say
        return {}
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)  # it prints a traceback for each error that it raises
    limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=SILENT_SECONDS)
    return {"requests_timeout": limits}
