"""Checkpoints on an object store: each step is written on this machine first, then uploaded whole, its marker last."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

from bert_jax.storage import files

COMMITTED = "commit_success.txt"  # Orbax writes it last, and so does an upload


class RemoteSteps:
    """Uploads steps from the folder ``local`` to ``remote`` in the background, and prunes the old ones there.

    Args:
      keep: which of the steps stay, given all of them in ascending order.
    """

    def __init__(self, remote: str | os.PathLike[str], keep: Callable[[list[int]], list[int]]):
        self._remote, self._keep = files.as_path(remote), keep
        self.local = files.cache_directory() / "checkpoints" / sha256(os.fspath(remote).encode()).hexdigest()[:16]
        shutil.rmtree(self.local, ignore_errors=True)  # the store is the truth: a step that is not there is lost
        self.local.mkdir(parents=True)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="upload-checkpoint")
        self._pending: Future[None] | None = None

    def upload(self, step: int, written: Callable[[], None]) -> None:
        """Upload ``step`` once ``written`` returns. An error is raised by the next ``wait``."""
        self._pending = self._thread.submit(self._upload, step, written)

    def _upload(self, step: int, written: Callable[[], None]) -> None:
        written()
        files.upload(self.local / str(step), self._remote / str(step), last=COMMITTED)
        shutil.rmtree(self.local / str(step))
        steps = whole_steps(self._remote)
        for old in sorted(set(steps) - set(self._keep(steps))):
            (self._remote / str(old) / COMMITTED).unlink()
            (self._remote / str(old)).rmtree()

    def wait(self) -> None:
        """Until the upload under way, if any, has ended; raises what it raised."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        self._thread.shutdown()
        shutil.rmtree(self.local, ignore_errors=True)


def whole_steps(folder: str | os.PathLike[str]) -> list[int]:
    """Steps in ``folder`` that were written whole, ascending."""
    path = files.as_path(folder)
    if not path.is_dir():
        return []
    return sorted(int(p.name) for p in path.iterdir() if p.name.isdigit() and (p / COMMITTED).exists())


@contextlib.contextmanager
def readable(step: str | os.PathLike[str]) -> Iterator[str]:
    """The folder of a step where Orbax reads it: for one that was uploaded, a verified copy while the block lasts."""
    path = files.as_path(step)
    if not files.is_remote(path) or not files.committed(path):  # Orbax itself writes and reads gs://
        yield os.fspath(path)
        return
    copy: Path = files.local_copy(path)
    try:
        yield os.fspath(copy)
    finally:
        shutil.rmtree(copy, ignore_errors=True)
