"""Finds the files that match a pattern, locally and on an object store."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from pathlib import Path

from etils import epath

from bert_jax.storage import files
from bert_jax.storage.remote import RemotePath


def matches(pattern: str) -> list[epath.Path]:
    """Return the files that match ``pattern`` (``**`` matches nested folders), sorted.

    A link to a folder that the link itself is in is not followed: each file is found once.
    """
    if files.is_remote(pattern):
        scheme, _, rest = pattern.partition("://")
        return [files.as_path(p) for p in RemotePath(f"{scheme}://").glob(rest) if p.is_file()]
    return [epath.Path(p) for p in sorted(set(_matches(os.path.expanduser(pattern)))) if os.path.isfile(p)]


def _matches(pattern: str) -> Iterator[str]:
    """Yield the local paths that match ``pattern``, some perhaps twice; hidden folders are left out as by ``glob``."""
    pattern = os.path.join(pattern, "*") if os.path.basename(pattern) == "**" else pattern
    start, nested, rest = pattern.partition("**/")
    if not nested or start[-1:] not in ("", "/"):
        yield from glob.glob(pattern, recursive=True)
        return
    for root in glob.glob(start) if start else [""]:
        for folder, inner, _ in os.walk(root or os.curdir, followlinks=True):
            inner[:] = [name for name in inner if name[0] != "." and not _leads_back(folder, name)]
            below = folder if root else os.path.relpath(folder)
            yield from _matches(os.path.join("" if below == os.curdir else glob.escape(below), rest))


def _leads_back(folder: str, name: str) -> bool:
    """Return whether ``name`` in ``folder`` is a link to a folder that holds it; two such links make 2^40 paths."""
    path, place = Path(folder, name), Path(folder)
    return path.is_symlink() and any(one.resolve().is_relative_to(path.resolve()) for one in (place, *place.parents))
