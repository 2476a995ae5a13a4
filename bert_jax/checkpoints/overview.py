"""Lists all saved steps of a workdir: steps of the run, of its best evaluation, of frozen parts, and damaged steps."""

from __future__ import annotations

import dataclasses
import json
import re

from etils import epath

from bert_jax.checkpoints.remote_steps import unmarked_steps, whole_steps
from bert_jax.storage import files, reading

SET_ASIDE = re.compile("damaged-step-([0-9]+)")


@dataclasses.dataclass(frozen=True)
class SavedStep:
    """A saved step of a workdir."""

    name: str  # path of its folder within the workdir
    folder: epath.Path
    step: int
    size: int  # bytes
    time: float | None  # when it was saved, as Unix time; None if that cannot be read
    set_aside: bool = False  # whether the step was found to be damaged and moved away
    unmarked: bool = False  # whether the step lacks every mark of a complete step


def overview(workdir: str) -> list[SavedStep]:
    """Return all steps below ``workdir``: by folder the complete and the unmarked ones, then those set aside."""
    root, found = files.as_path(workdir), []
    entries = [entry for entry in root.iterdir() if entry.is_dir()] if root.is_dir() else []
    homes = [root / "checkpoints", *(entry / "checkpoints" for entry in sorted(entries, key=lambda entry: entry.name))]
    for home in homes:
        found += [_saved(root, home / str(step), step) for step in whole_steps(home)]
        found += [_saved(root, home / str(step), step, unmarked=True) for step in unmarked_steps(home)]
    for entry in entries:
        if aside := SET_ASIDE.fullmatch(entry.name):
            found.append(_saved(root, entry, int(aside[1]), set_aside=True))
    return found


def _saved(root: epath.Path, folder: epath.Path, step: int, **flags: bool) -> SavedStep:
    name = str(folder).removeprefix(f"{root}/")
    size = sum(files.size(folder / file) for file in files.below(folder))
    try:
        time = json.loads(reading.read_bytes(folder / "_CHECKPOINT_METADATA"))["commit_timestamp_nsecs"] / 1e9
    except (OSError, ValueError, KeyError, TypeError):
        time = None
    return SavedStep(name, folder, step, size, time, **flags)
