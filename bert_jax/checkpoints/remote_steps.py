"""Saves checkpoints on an object store: each step is first written on this machine and, when complete, uploaded."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import sha256

from etils import epath

from bert_jax.storage import files, write_errors
from bert_jax.storage.checksums import CHECKSUMS

ORBAX_MARK = "commit_success.txt"  # the file that Orbax writes last
NUMBER = re.compile("0|[1-9][0-9]*")  # the name of a step's folder
MARKS = (ORBAX_MARK, CHECKSUMS, files.MARKER)  # any one of these files shows that a step is complete: one may be lost


class RemoteSteps:
    """Uploads steps from the local folder ``local`` to ``remote`` in the background, and removes old steps there.

    Args:
      keep: given all steps in ascending order, returns the steps to keep.
    """

    def __init__(self, remote: str | os.PathLike[str], keep: Callable[[list[int]], list[int]]):
        self._remote, self._keep = files.as_path(remote), keep
        self.local = files.cache_directory() / "checkpoints" / sha256(os.fspath(remote).encode()).hexdigest()[:16]
        shutil.rmtree(self.local, ignore_errors=True)  # what an earlier run did not upload is lost
        self.local.mkdir(parents=True)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="upload-checkpoint")
        self._pending: Future[None] | None = None

    def upload(self, step: int, written: Callable[[], None]) -> None:
        """Upload ``step`` when ``written`` returns, in the background. An error is raised by the next ``wait``."""
        self._pending = self._thread.submit(self._upload, step, written)

    def _upload(self, step: int, written: Callable[[], None]) -> None:
        written()
        files.upload(self.local / str(step), self._remote / str(step))
        shutil.rmtree(self.local / str(step))
        steps = whole_steps(self._remote)
        for old in sorted(set(steps) - set(self._keep(steps))):
            files.remove(self._remote / str(old))

    def wait(self) -> None:
        """Wait until the current upload, if any, has ended, and raise its error if it failed."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        self._thread.shutdown()
        shutil.rmtree(self.local, ignore_errors=True)


def whole_steps(folder: str | os.PathLike[str]) -> list[int]:
    """Return the numbers of the complete steps in ``folder``, ascending."""
    return [int(step.name) for step in _numbered(folder) if _is_marked(step)]


def unmarked_steps(folder: str | os.PathLike[str]) -> list[int]:
    """Return the numbers of the steps in ``folder`` that lack every mark of a complete step, ascending."""
    return [int(step.name) for step in _numbered(folder) if step.is_dir() and not _is_marked(step)]


def _numbered(folder: str | os.PathLike[str]) -> list[epath.Path]:
    """Return what has a number as its name in ``folder``, ascending, without what is being written or removed."""
    path = files.as_path(folder)
    found = [entry for entry in path.iterdir() if NUMBER.fullmatch(entry.name)] if path.is_dir() else []
    return sorted((p for p in found if not (p / files.UNFINISHED).exists()), key=lambda p: int(p.name))


def _is_marked(step: epath.Path) -> bool:
    if not files.is_remote(step) and step.is_dir() and not os.access(step, os.R_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(step))
    return any((step / mark).exists() for mark in MARKS)


@contextlib.contextmanager
def readable(step: str | os.PathLike[str], copied: bool) -> Iterator[str]:
    """Context manager: yield a folder where Orbax can read the step.

    A step on an object store is copied to a local folder, which exists only inside the context.

    Args:
      copied: whether to copy a step from ``gs://`` too, although Orbax can read it there.

    Raises:
      UserError: the disk is too full for the copy.
    """
    path = files.as_path(step)
    if not files.is_remote(path) or (os.fspath(path).startswith("gs://") and not copied):
        yield os.fspath(path)
        return
    with files.scratch(sha256(os.fspath(path).encode()).hexdigest()[:16]) as copy:
        for name in files.below(path):
            with write_errors.explained(epath.Path(copy), only=write_errors.DISK_TROUBLE):
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                files.copy(path / name, epath.Path(copy / name))
        yield os.fspath(copy)
