"""Where the arrays of a saved step lie: the index that Orbax keeps in ``state/`` (OCDBT, a tree in tensorstore)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import tensorstore as ts


@dataclasses.dataclass(frozen=True)
class Stored:
    """A stretch of a file that the index names.

    Attributes:
      key: of a piece of an array, such as ``params.encoder.kernel/0.0``; None: the stretch is a part of the index.
      file: relative to ``state/``.
    """

    key: str | None
    file: str
    start: int  # bytes
    length: int

    @property
    def end(self) -> int:
        return self.start + self.length

    @property
    def array(self) -> str:
        return (self.key or "").rpartition("/")[0]


def stored(state: Path) -> Iterator[Stored]:
    """Yield every stretch that the index in the local folder ``state`` names. Small arrays lie in the index itself.

    Raises:
      ValueError: the index is damaged, or not there. Of a part that is not there as a whole nothing is read.
    """
    base = ts.KvStore.open({"driver": "file", "path": f"{state}/"}).result()
    versions = ts.ocdbt.dump(base).result()["versions"]
    waiting = [versions[-1]["root"]["location"]]
    while waiting:
        location = waiting.pop()
        node = _stretch(None, location)
        yield node
        if size(state / node.file) < node.end:
            continue
        for entry in ts.ocdbt.dump(base, location).result()["entries"]:
            if "location" in entry:  # an inner node of the tree
                waiting.append(entry["location"])
            elif "indirect_value" in entry:
                yield _stretch(entry["key"].decode(), entry["indirect_value"])


def size(path: Path) -> int:
    """In bytes; -1 for a file that is not there."""
    return path.stat().st_size if path.is_file() else -1


def _stretch(key: str | None, location: str) -> Stored:
    """``value:ocdbt.process_0/:d/4b9a:256220:3857`` -> 3,857 bytes of ``ocdbt.process_0/d/4b9a`` from 256,220."""
    _, folder, name, start, length = location.split(":")
    return Stored(key, folder + name, int(start), int(length))
