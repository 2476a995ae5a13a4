"""Writes files and folders so that nothing is left half-written, locally or on an object store (``gs://``, ``s3://``).

Locally, data is written under a temporary name, which is then renamed. An object store cannot rename a folder
atomically: there the files are copied, and a marker file ``COMMITTED`` is written last; a folder without its marker
counts as absent.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, cast

from etils import epath

from bert_jax.errors import UserError
from bert_jax.storage import hub, reading
from bert_jax.storage.remote import RemotePath
from bert_jax.storage.write_errors import DISK_TROUBLE, explain

MARKER = "COMMITTED"  # the marker file, which lists the files that were written (``listing``)
UNFINISHED = "UNFINISHED"  # a file that is in a folder while the folder is written; shows that leftovers may be removed
_MOST_BYTES = 160  # of the name of a file that a user's name is part of: host and process follow in its temporary name
_LOCKS: dict[str, threading.Lock] = {}  # of ``one_at_a_time``, by path


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Return whether ``path`` names an object store, where a rename is not atomic."""
    return "://" in os.fspath(path) and not hub.is_model(path)


def as_path(path: str | os.PathLike[str]) -> epath.Path:
    """Return ``path`` as a path of its file system, with ``~`` expanded.

    A model of the Hugging Face Hub (``hf://USER/NAME``) becomes the path of its local copy (``hub.local``).

    Raises ``UserError`` for a path that no file system can have."""
    try:
        impossible = b"\0" in os.fsencode(path)
    except UnicodeEncodeError:
        impossible = True
    if impossible:
        raise UserError(f"{os.fspath(path)!r} is not a path: it has a NUL or half a character in it; give another")
    if is_remote(path):
        return cast(epath.Path, RemotePath(path))
    return epath.Path(hub.local(os.fspath(path)) if hub.is_model(path) else path).expanduser()


def as_target(path: str | os.PathLike[str]) -> epath.Path:
    """Return ``path`` as a path to write to. Raises ``UserError`` for the reasons of ``as_path``, or for a model of the
    Hugging Face Hub, of which there is only a copy to read here."""
    if hub.is_model(path):
        raise UserError(
            f"{os.fspath(path)} can be read, but not written; give a folder (`bert-jax export --push=USER/NAME` writes "
            "to the Hub)"
        )
    return as_path(path)


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Write ``data`` to the file ``path``, whole or not at all."""
    target = as_target(path)
    with explain(target):
        if is_remote(target):
            target.write_bytes(data)  # an object is uploaded whole or not at all
            return
        made = _make_parents(target)
        temporary = _temporary(target)
        try:
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
            _remove_empty(made)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write ``text`` to the file ``path`` as UTF-8, whole or not at all."""
    write_bytes(path, text.encode("utf-8"))


@contextlib.contextmanager
def _beside(target: epath.Path) -> Iterator[Path]:
    """Yield an empty local folder in which to write what becomes ``target``, and remove it after the block.

    Leftovers of a killed process are removed first. Raises ``UserError`` if the folder cannot be made.
    """
    made: list[Path] = []
    with explain(target):
        if is_remote(target):
            folder = Path(tempfile.mkdtemp(prefix="bert_jax-"))
        else:
            made = _make_parents(target)
            sweep(Path(target.parent), target.name)
            folder = _temporary(target)
            folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _remove_empty(made)


def _make_parents(target: epath.Path) -> list[Path]:
    """Make the folders above ``target``; return the new folders, the innermost first."""
    missing = [Path(folder) for folder in target.absolute().parents if not folder.exists()]
    target.parent.mkdir(parents=True, exist_ok=True)
    return missing


def _remove_empty(folders: list[Path]) -> None:
    """Remove folders that ``_make_parents`` made and in which nothing came to be, because a write failed."""
    with contextlib.suppress(OSError):
        for folder in folders:
            folder.rmdir()


@contextlib.contextmanager
def whole_directory(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield an empty local folder that becomes ``path`` if the block ends without an error, and is removed otherwise.

    Leftovers of a killed process, here or on an object store, are removed first.

    Raises:
      UserError: ``path`` exists and is not empty, cannot be written, or the disk is full.
    """
    target = as_target(path)
    check_new(target)
    with _beside(target) as folder:
        try:
            with explain(target, only=DISK_TROUBLE):
                yield folder
            with explain(target):
                if is_remote(target):
                    upload(folder, target)
                else:
                    os.replace(folder, target)  # replaces an empty folder
        except Exception:
            for seconds in (0.1, 0.4):  # a failed save has writes that still make files, and nobody can wait for them
                shutil.rmtree(folder, ignore_errors=True)
                time.sleep(seconds)
            raise


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a local path to write to, in an empty folder. The file becomes ``path`` if the block ends without an error.

    Raises:
      UserError: ``path`` exists, cannot be written, or the disk is full.
    """
    target = as_target(path)
    if target.exists():
        raise UserError(f"{target} exists already; choose another place or remove it")
    with _beside(target) as folder:
        with explain(target, only=DISK_TROUBLE):
            yield folder / target.name
        with explain(target):
            if is_remote(target):
                copy(epath.Path(folder / target.name), target)  # an object is uploaded whole or not at all
            else:
                os.replace(folder / target.name, target)


def check_new(path: str | os.PathLike[str]) -> None:
    """Raise ``UserError`` if ``path`` exists. An empty folder, or an unfinished folder on a store, does not count."""
    target = as_target(path)
    if is_remote(target):
        if is_whole(target):
            raise UserError(f"{target} exists already; choose another place or remove it")
        if target.exists() and not (target / UNFINISHED).exists():
            raise UserError(f"{target} holds files of something else; choose another place or remove them")
    elif target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{target} exists already and is not empty; choose another place or remove it")


def check_name(name: str, what: str) -> None:
    """Raise ``UserError`` if ``name``, which ``what`` makes, is too long for a file."""
    if (length := len(os.fsencode(name))) > _MOST_BYTES:
        raise UserError(
            f"{what} makes a file whose name has {length} bytes, {name[:20]}...{name[-20:]}; at most {_MOST_BYTES} are "
            "allowed: choose a shorter name"
        )


def check_writable(path: str | os.PathLike[str], folder: bool = False) -> None:
    """Raise ``UserError`` if ``path``, a file or a ``folder``, cannot be written; call this before slow work.

    Nothing is checked on an object store, where only the write itself shows whether it works."""
    target = as_target(path)
    if is_remote(target):
        return
    there = next(place for place in (target, *target.absolute().parents) if place.exists())
    if there.is_dir() != (folder or there != target):
        what = "a folder" if there.is_dir() else "a file"
        raise UserError(f"cannot write {target}: {there} is {what}; choose another place")
    if not there.is_dir() and not os.path.isfile(there):  # a write would put a plain file in its place
        raise UserError(f"cannot write {target}: it is a pipe, a socket or a device; choose another place")
    if not os.access(there, os.W_OK):
        raise UserError(f"cannot write {target}: you may not write to {there}; choose another place")


def upload(source: Path, target: epath.Path) -> None:
    """Copy a local folder to an object store, and write the marker last. Leftovers of an earlier try are removed."""
    if target.exists():
        if not ((target / UNFINISHED).exists() or (target / MARKER).exists()):
            raise UserError(f"{target} holds files of something else; choose another place or remove them")
        remove(target)
    (target / UNFINISHED).write_text("")
    digests = {name: sha256(source / name) for name in below(source)}
    for name in digests:
        copy(epath.Path(source / name), target / name)
    commit(target, digests)


def commit(folder: epath.Path, digests: Mapping[str, str]) -> None:
    """Write the marker file of a folder on an object store; all its files (name -> sha256) must be there already."""
    (folder / MARKER).write_text(listing(digests))
    (folder / UNFINISHED).unlink(missing_ok=True)


def remove(folder: epath.Path) -> None:
    """Remove a folder, local or on an object store. If removal is interrupted, the remains do not count as whole."""
    (folder / UNFINISHED).write_text("")
    (folder / MARKER).unlink(missing_ok=True)
    for entry in folder.iterdir():
        if entry.name != UNFINISHED:
            entry.rmtree() if entry.is_dir() else entry.unlink()
    folder.rmtree()


def below(folder: str | os.PathLike[str]) -> list[str]:
    """Return the sorted names of all files in ``folder`` and its subfolders, relative to ``folder``.

    A link to a folder counts as a file, because following it could lead back to ``folder``."""
    waiting, names = [(as_path(folder), "")], []
    while waiting:
        path, start = waiting.pop()
        for entry in path.iterdir():
            if entry.is_dir() and (isinstance(entry, RemotePath) or not os.path.islink(entry)):
                waiting.append((entry, f"{start}{entry.name}/"))
            else:
                names.append(start + entry.name)
    return sorted(names)


def size(path: epath.Path) -> int:
    """Return the size of a file in bytes."""
    return path.size if isinstance(path, RemotePath) else Path(path).stat().st_size


def copy(source: epath.Path, target: epath.Path) -> None:
    """Copy a file to or from an object store, or on this machine."""
    if isinstance(target, RemotePath):
        target.put(source)
    elif isinstance(source, RemotePath):
        source.get(target)
    else:
        shutil.copyfile(source, target)


def is_whole(path: str | os.PathLike[str]) -> bool:
    """Return whether the folder ``path`` was written whole."""
    target = as_path(path)
    return (target / MARKER).exists() if is_remote(target) else target.is_dir()


@contextlib.contextmanager
def download(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield ``path`` itself if it is local, else a temporary local copy of the files in the remote folder ``path``.

    The folder needs no marker, because another program may have written it."""
    if not is_remote(path):
        yield Path(as_path(path))
        return
    source = as_path(path)
    with tempfile.TemporaryDirectory(prefix="bert_jax-") as folder:
        for entry in source.iterdir() if source.is_dir() else ():
            if entry.is_file():
                copy(entry, epath.Path(folder) / entry.name)
        yield Path(folder)


@contextlib.contextmanager
def scratch(name: str) -> Iterator[Path]:
    """Yield an empty folder in the cache. It is removed after the block, or by the next call if this process is killed.

    Args:
      name: says what the folder is for; a process has at most one folder of the same name at a time.
    """
    with _beside(epath.Path(cache_directory() / "scratch" / name)) as folder:
        yield folder


def sha256(path: str | os.PathLike[str]) -> str:
    """Return the sha256 of a file's bytes in hex."""
    with reading.open_plain(as_path(path)) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def listing(digests: Mapping[str, str]) -> str:
    """Return name -> sha256 as the text that ``sha256sum --check`` reads: one line per file, sorted by name."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items()))


def parse_listing(text: str) -> dict[str, str]:
    """Return name -> sha256 from a text that ``listing`` made."""
    return {name: digest for digest, _, name in (line.partition("  ") for line in text.split("\n") if line)}


def cache_directory() -> Path:
    """Return the folder for files that can be made again: ``$BERT_JAX_CACHE``, or ``~/.cache/bert_jax``."""
    return Path(os.environ.get("BERT_JAX_CACHE") or "~/.cache/bert_jax").expanduser()


def _temporary(target: epath.Path) -> Path:
    return Path(f"{os.fspath(target)}.{socket.gethostname()}.{os.getpid()}.tmp")


def sweep(folder: Path, name: str | None = None) -> None:
    """Remove temporary files that dead processes of this host left in ``folder``: all, or only files for ``name``."""
    of = ".+" if name is None else re.escape(name)
    left = re.compile(rf"{of}\.{re.escape(socket.gethostname())}\.(\d+)\.tmp")
    for entry in folder.iterdir():
        # This process never writes the same path twice at once, so a file of its own is a leftover too.
        if (match := left.fullmatch(entry.name)) and (int(match[1]) == os.getpid() or not runs(int(match[1]))):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def runs(process: int) -> bool:
    """Return whether a process with the id ``process`` runs on this machine."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it runs, as another user's
    return True


@contextlib.contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Context manager that waits for the lock on ``path``, and holds it. If the holder is killed, the lock is released.

    The lock file exists while a process holds the lock; after a kill it stays until the next holder removes it. On a
    file system without locks, only the threads of one process wait for each other."""
    with _LOCKS.setdefault(os.fspath(path), threading.Lock()):
        while True:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                file = reading.lock_file(path)
            except FileNotFoundError:  # another process removed the folder
                continue
            with contextlib.suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
            if is_there(file, path):
                break
            file.close()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
            file.close()


def is_there(file: IO[Any], path: Path) -> bool:
    """Return whether the open ``file`` is still the file at ``path``, which may have been removed and made anew."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False
