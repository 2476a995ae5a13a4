"""Reads the index that Orbax keeps of the folder ``state/`` of a saved step (in tensorstore's OCDBT format)."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Executor
from hashlib import sha256
from pathlib import Path

import tensorstore as ts


def digests(state: Path, pool: Executor, names: Iterable[str] | None = None) -> dict[str, str]:
    """Return the sha256 of every piece of an array, by name, such as ``params.encoder.kernel/0.0``.

    The digest is "" if the piece cannot be read. If ``names`` is given, only these pieces are read.

    Raises:
      ValueError: the index in the local folder ``state`` is damaged.
    """
    store = ts.KvStore.open({"driver": "ocdbt", "base": {"driver": "file", "path": f"{state}/"}}).result()

    def digest(key: bytes) -> str:
        try:
            return sha256(store.read(key).result().value).hexdigest()
        except ValueError:
            return ""

    keys = sorted(store.list().result()) if names is None else [name.encode() for name in names]
    return {key.decode(): found for key, found in zip(keys, pool.map(digest, keys), strict=True)}


def lengths(state: Path) -> dict[str, int]:
    """Return the least number of bytes that each file in the local folder ``state`` must have, according to the index.

    Every call leaks some memory in tensorstore (0.1.86), so use this only for steps that may be damaged, not at every
    save.

    Raises:
      ValueError: the index is damaged or missing.
    """
    needed: dict[str, int] = {}
    base = ts.KvStore.open({"driver": "file", "path": f"{state}/"}).result()
    waiting = [ts.ocdbt.dump(base).result()["versions"][-1]["root"]["location"]]
    while waiting:
        location = waiting.pop()
        file, end = _file_and_end(location)
        needed[file] = max(end, needed.get(file, 0))
        if size(state / file) < end:
            continue
        for entry in ts.ocdbt.dump(base, location).result()["entries"]:
            if "location" in entry:  # an inner node of the tree
                waiting.append(entry["location"])
            elif "indirect_value" in entry:  # an array outside of the index, as all but small arrays are
                file, end = _file_and_end(entry["indirect_value"])
                needed[file] = max(end, needed.get(file, 0))
    return needed


def size(path: Path) -> int:
    """Return the size of a file in bytes, or -1 if there is no such file."""
    return path.stat().st_size if path.is_file() else -1


def _file_and_end(location: str) -> tuple[str, int]:
    """Return the file in which the bytes at ``location`` lie, and the offset in the file at which they end.

    ``value:ocdbt.process_0/:d/4b9a:256220:3857`` gives ``ocdbt.process_0/d/4b9a`` and 260,077.
    """
    _, folder, name, start, length = location.split(":")
    return folder + name, int(start) + int(length)
