"""Saves checkpoints on an object store: each step is first written on this machine and, when complete, uploaded."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import sha256

from etils import epath

from bert_jax.storage import files, write_errors
from bert_jax.workdir.steps import whole_steps


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
            with write_errors.explain(epath.Path(copy), only=write_errors.DISK_TROUBLE):
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                files.copy(path / name, epath.Path(copy / name))
        yield os.fspath(copy)
