"""A path on an object store. Every URL goes through fsspec, so that its in-memory file system (``memory://``) proves
in the tests what ``gs://`` (extra ``gcs``) and ``s3://`` (extra ``s3``) do."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator
from typing import IO, Any

from bert_jax.errors import UserError


class RemotePath(os.PathLike[str]):
    """A URL with the part of ``epath.Path``'s interface that this package uses."""

    def __init__(self, url: str | os.PathLike[str]) -> None:
        self.scheme, _, location = os.fspath(url).partition("://")
        self.location = posixpath.normpath(location.strip("/")).removeprefix(".")

    @property
    def _fs(self) -> Any:
        import fsspec

        try:
            return fsspec.filesystem(self.scheme)
        except (ImportError, ValueError) as error:
            raise UserError(f"cannot open {self}: {error}; gs:// needs the extra gcs, s3:// the extra s3") from error

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
    def size(self) -> int:
        """Bytes."""
        return int(self._fs.size(os.fspath(self)))

    def exists(self) -> bool:
        return self._fs.exists(os.fspath(self))

    def is_dir(self) -> bool:
        return self._fs.isdir(os.fspath(self))

    def is_file(self) -> bool:
        return self._fs.isfile(os.fspath(self))

    def iterdir(self) -> Iterator[RemotePath]:
        for entry in sorted(self._fs.ls(os.fspath(self), detail=False)):
            name = posixpath.basename(entry.rstrip("/"))
            if name != self.name:  # some stores list the folder itself
                yield self / name

    def listed(self) -> list[str]:
        """Names in the folder, as the store has them now: its client may remember an older list. Empty if there is
        none."""
        try:
            entries = self._fs.ls(os.fspath(self), detail=False, refresh=True)
        except FileNotFoundError:
            return []
        return sorted({posixpath.basename(entry.rstrip("/")) for entry in entries} - {self.name, ""})

    def glob(self, pattern: str) -> Iterator[RemotePath]:
        for entry in sorted(self._fs.glob(os.fspath(self / pattern))):
            yield RemotePath(f"{self.scheme}://{entry}")

    def open(self, mode: str = "r", **options: Any) -> IO[Any]:
        return self._fs.open(os.fspath(self), mode, **options)

    def read_bytes(self) -> bytes:
        return self._fs.cat_file(os.fspath(self))

    def read_text(self, encoding: str = "utf-8") -> str:
        return self.read_bytes().decode(encoding)

    def write_bytes(self, data: bytes) -> None:
        self._fs.pipe_file(os.fspath(self), data)

    @property
    def creates(self) -> bool:
        """Whether the client of this store has a request for ``create_bytes``; else it looks, and then writes."""
        from fsspec.spec import AbstractFileSystem

        return getattr(self._fs.pipe_file, "__func__", None) is not AbstractFileSystem.pipe_file

    def create_bytes(self, data: bytes) -> None:
        """Write an object only if it is absent, which the store decides. Raises ``FileExistsError`` if it is there; a
        store that cannot do so overwrites it, or raises."""
        self._fs.pipe_file(os.fspath(self), data, mode="create")

    def write_text(self, text: str, encoding: str = "utf-8") -> None:
        self.write_bytes(text.encode(encoding))

    def mkdir(self, parents: bool = False, exist_ok: bool = False) -> None:
        """Nothing: an object store has no folders, only names with slashes."""

    def unlink(self, missing_ok: bool = False) -> None:
        if not missing_ok or self.exists():
            self._fs.rm_file(os.fspath(self))

    def rmtree(self) -> None:
        self._fs.rm(os.fspath(self), recursive=True)

    def rename(self, target: str | os.PathLike[str]) -> None:
        """Copies and deletes: an object store has nothing better, so this is not atomic."""
        self._fs.mv(os.fspath(self), os.fspath(target), recursive=True)
