"""Replaces a folder by a new folder; the old folder stays until the new folder is whole."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeAlias

from bert_jax.storage import files, write_errors

# Either ``files.whole_directory``, which raises an error if the path is taken, or ``replaced_directory``.
Directory: TypeAlias = Callable[[str | os.PathLike[str]], AbstractContextManager[Path]]


@contextlib.contextmanager
def replaced_directory(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield an empty local folder that replaces ``path`` if the block ends without an error, and is removed otherwise.

    Two renames exchange the folders. If the process is killed between the two, the next call puts the old folder back.
    An object store has no rename: there, after the block, the old folder is removed, its marker file first (see
    ``files``), and then the new folder is uploaded.

    Raises:
      UserError: ``path`` cannot be written, holds files of something else on an object store, or the disk is full.
    """
    target = files.as_path(path)
    if files.is_remote(target):
        with tempfile.TemporaryDirectory(prefix="bert_jax-") as folder:
            with write_errors.explain(target, only=write_errors.DISK_TROUBLE):
                yield Path(folder)
            with write_errors.explain(target):
                files.upload(Path(folder), target)
        return
    place, new, old = (Path(f"{os.fspath(target)}{ending}") for ending in ("", ".new", ".replaced"))
    _put_back(old, place)
    shutil.rmtree(new, ignore_errors=True)
    try:
        with files.whole_directory(new) as folder:
            yield folder
        with write_errors.explain(target):
            if place.exists():
                os.replace(place, old)
            os.replace(new, place)
    finally:
        _put_back(old, place)
        shutil.rmtree(new, ignore_errors=True)


def _put_back(old: Path, place: Path) -> None:
    """Finish an interrupted exchange: put the old folder back, or remove it if the new folder is in its place."""
    if old.exists() and not place.exists():
        os.replace(old, place)
    shutil.rmtree(old, ignore_errors=True)
