"""Finds saved steps: the complete steps of a folder; all steps of a workdir, with best, frozen and damaged steps."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import re

from etils import epath

from bert_jax.storage import files, reading
from bert_jax.storage.checksums import CHECKSUMS

_ORBAX_MARK = "commit_success.txt"  # the file that Orbax writes last
NUMBER = re.compile("0|[1-9][0-9]*")  # the name of a step's folder
MARKS = (_ORBAX_MARK, CHECKSUMS, files.MARKER)  # any one of these files shows that a step is complete: one may be lost
_SET_ASIDE = re.compile("damaged-step-([0-9]+)")


def whole_steps(folder: str | os.PathLike[str]) -> list[int]:
    """Return the numbers of the complete steps in ``folder``, ascending."""
    return [int(step.name) for step in _numbered(folder) if _is_marked(step)]


def unmarked_steps(folder: str | os.PathLike[str]) -> list[int]:
    """Return the numbers of the steps in ``folder`` that lack every mark of a complete step, ascending."""
    return [int(step.name) for step in _numbered(folder) if step.is_dir() and not _is_marked(step)]


def _numbered(folder: str | os.PathLike[str]) -> list[epath.Path]:
    """Return the entries of ``folder`` with a number as their name, ascending, without unfinished entries."""
    path = files.as_path(folder)
    entries = [entry for entry in path.iterdir() if NUMBER.fullmatch(entry.name)] if path.is_dir() else []
    return sorted((p for p in entries if not (p / files.UNFINISHED).exists()), key=lambda p: int(p.name))


def _is_marked(step: epath.Path) -> bool:
    if not files.is_remote(step) and step.is_dir() and not os.access(step, os.R_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(step))
    return any((step / mark).exists() for mark in MARKS)


@dataclasses.dataclass(frozen=True)
class _SavedStep:
    """A saved step of a workdir."""

    name: str  # path of its folder within the workdir
    folder: epath.Path
    step: int
    size: int  # bytes
    time: float | None  # when it was saved, as Unix time; None if that cannot be read
    set_aside: bool = False  # whether the step was found to be damaged and moved away
    unmarked: bool = False  # whether the step lacks every mark of a complete step


def overview(workdir: str) -> list[_SavedStep]:
    """Return all steps below ``workdir``: by folder the complete and the unmarked steps, then the steps set aside."""
    root, steps = files.as_path(workdir), []
    entries = [entry for entry in root.iterdir() if entry.is_dir()] if root.is_dir() else []
    homes = [root / "checkpoints", *(entry / "checkpoints" for entry in sorted(entries, key=lambda entry: entry.name))]
    for home in homes:
        steps += [_saved(root, home / str(step), step) for step in whole_steps(home)]
        steps += [_saved(root, home / str(step), step, unmarked=True) for step in unmarked_steps(home)]
    for entry in entries:
        if aside := _SET_ASIDE.fullmatch(entry.name):
            steps.append(_saved(root, entry, int(aside[1]), set_aside=True))
    return steps


def _saved(root: epath.Path, folder: epath.Path, step: int, **flags: bool) -> _SavedStep:
    name = str(folder).removeprefix(f"{root}/")
    size = sum(files.size(folder / file) for file in files.below(folder))
    try:
        time = json.loads(reading.read_bytes(folder / "_CHECKPOINT_METADATA"))["commit_timestamp_nsecs"] / 1e9
    except (OSError, ValueError, KeyError, TypeError):
        time = None
    return _SavedStep(name, folder, step, size, time, **flags)
