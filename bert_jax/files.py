"""Writing that leaves nothing half-written, on a local disk or an object store (``gs://``, ``s3://``, ...).

Locally a write goes to a temporary name and is renamed. An object store has no atomic rename of a folder: there the
files are copied and a marker, ``COMMITTED``, is written last; a folder without its marker counts as absent.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from etils import epath

from bert_jax.errors import UserError

MARKER = "COMMITTED"


def as_path(path: str | os.PathLike[str]) -> epath.Path:
    """A path of any file system; ``~`` is expanded."""
    return epath.Path(path).expanduser()


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Whether ``path`` names an object store, where a rename is not atomic."""
    return "://" in os.fspath(path)


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a whole file or nothing."""
    target = as_path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    if is_remote(target):
        target.write_bytes(data)  # one object is put whole or not at all
        return
    temporary = Path(f"{os.fspath(target)}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UserError(f"cannot write {target}: {error.strerror or error}; free some space or choose another place") from error


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a whole UTF-8 text file or nothing."""
    write_bytes(path, text.encode("utf-8"))


@contextlib.contextmanager
def whole_directory(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield an empty local folder that becomes ``path`` if the block ends well, and vanishes if it does not.

    Raises:
      UserError: ``path`` exists and is not empty, or the disk is full.
    """
    target = as_path(path)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{target} exists already and is not empty; choose another place or remove it")
    if is_remote(target):
        temporary = Path(tempfile.mkdtemp(prefix="bert_jax-"))
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(f"{os.fspath(target)}.{os.getpid()}.tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
    try:
        yield temporary
        if is_remote(target):
            upload(temporary, target)
        else:
            if target.exists():
                target.rmdir()
            os.replace(temporary, target)
    except OSError as error:
        raise UserError(f"cannot write {target}: {error.strerror or error}; free some space or choose another place") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def upload(source: Path, target: epath.Path) -> None:
    """Copy a local folder to an object store, the marker last."""
    for file in sorted(p for p in source.rglob("*") if p.is_file()):
        destination = target / file.relative_to(source).as_posix()
        destination.parent.mkdir(parents=True, exist_ok=True)
        destination.write_bytes(file.read_bytes())
    (target / MARKER).write_text("")


def committed(path: str | os.PathLike[str]) -> bool:
    """Whether the folder ``path`` was written whole."""
    target = as_path(path)
    return (target / MARKER).exists() if is_remote(target) else target.is_dir()


def sha256(path: str | os.PathLike[str]) -> str:
    """Hex digest of a file's bytes."""
    digest = hashlib.sha256()
    with as_path(path).open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def cache_directory() -> Path:
    """Where derived files go that can be made again: ``$BERT_JAX_CACHE``, else the user's cache folder."""
    return Path(os.environ.get("BERT_JAX_CACHE") or Path.home() / ".cache" / "bert_jax")


def local_copy(path: str | os.PathLike[str]) -> Path:
    """``path`` itself if local; else a whole local copy of the remote folder, made once."""
    if not is_remote(path):
        return Path(as_path(path))
    source = as_path(path)
    if not committed(source):
        raise UserError(f"{source} has no {MARKER} marker: it was not written whole; build it again")
    stamp = hashlib.sha256(os.fspath(source).encode() + (source / MARKER).read_bytes()).hexdigest()[:16]
    manifest = source / "manifest.json"
    if manifest.exists():
        stamp = hashlib.sha256(stamp.encode() + manifest.read_bytes()).hexdigest()[:16]
    target = cache_directory() / "staged" / stamp
    if not target.is_dir():
        with whole_directory(target) as temporary:
            for file in _walk(source):
                destination = temporary / os.fspath(file)[len(os.fspath(source)) + 1 :]
                destination.parent.mkdir(parents=True, exist_ok=True)
                with file.open("rb") as reader, open(destination, "wb") as writer:
                    shutil.copyfileobj(reader, writer)
    return target


def _walk(folder: epath.Path) -> Iterator[epath.Path]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _walk(entry)
        else:
            yield entry
