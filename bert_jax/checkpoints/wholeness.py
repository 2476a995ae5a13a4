"""Whether the files of a saved step are all there and as long as they were, before Orbax is asked to read them.

Orbax reads every array at once. If one read fails it leaves the others behind, and each of them then tells of itself on
stderr, hundreds of lines in all. A missing or shortened file is found here first, by its name and in one line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import tensorstore as ts


class DamagedStepError(ValueError):
    """A step lacks a file, or a part of one."""


def check_step(folder: str | os.PathLike[str]) -> None:
    """Raise ``DamagedStepError`` unless every file that the index of a step names is there, as far as it is needed.

    Args:
      folder: of the step, on a local disk. Its index alone is read, no array.
    """
    step = Path(folder)
    for name in ("facts/metadata", "state/_METADATA"):
        _check_json(step, name)
    needed: dict[str, int] = {}
    try:
        for name, end in _extents(step / "state"):
            needed[name] = max(end, needed.get(name, 0))
    except ValueError as error:  # what tensorstore raises for an index that is damaged or not there
        raise DamagedStepError(f"the index of the arrays in state/ is damaged: {_short(error)}") from error
    for name, size in sorted(needed.items()):
        found = _size(step / "state" / name)
        if found < size:
            raise DamagedStepError(
                f"state/{name} has {found:,} of {size:,} bytes" if found >= 0 else f"no state/{name}"
            )


def _check_json(step: Path, name: str) -> None:
    try:
        json.loads((step / name).read_bytes())
    except FileNotFoundError as error:
        raise DamagedStepError(f"no {name}") from error
    except ValueError as error:
        raise DamagedStepError(f"{name} is not JSON") from error


def _extents(state: Path) -> Iterator[tuple[str, int]]:
    """Each file that the tree of arrays names, and where the part that is used ends, in bytes."""
    base = ts.KvStore.open({"driver": "file", "path": f"{state}/"}).result()
    versions = ts.ocdbt.dump(base).result()["versions"]
    waiting = [versions[-1]["root"]["location"]]
    while waiting:
        location = waiting.pop()
        yield _extent(location)
        if _size(state / _extent(location)[0]) < _extent(location)[1]:
            continue  # it cannot be read; the caller says so
        for entry in ts.ocdbt.dump(base, location).result()["entries"]:
            if "location" in entry:  # an inner node of the tree
                waiting.append(entry["location"])
            elif "indirect_value" in entry:  # a small array lies in the node itself
                yield _extent(entry["indirect_value"])


def _extent(location: str) -> tuple[str, int]:
    """``value:ocdbt.process_0/:d/4b9a:256220:3857`` -> (``ocdbt.process_0/d/4b9a``, 260077)."""
    _, folder, name, start, length = location.split(":")
    return folder + name, int(start) + int(length)


def _size(path: Path) -> int:
    """In bytes; -1 for a file that is not there."""
    return path.stat().st_size if path.is_file() else -1


def _short(error: Exception) -> str:
    return str(error).partition("[")[0].strip()[:120]
