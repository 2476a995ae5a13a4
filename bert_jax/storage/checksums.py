"""Writes and checks ``SHA256SUMS``, a folder's list of the sha256 of its files, to find files that have changed.

``sha256sum --check SHA256SUMS`` reads this list too. The marker file of a folder on an object store (see
``files``) has the same form.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from etils import epath

from bert_jax.storage import files, reading, write_errors
from bert_jax.storage.retries import is_passing

CHECKSUMS = "SHA256SUMS"
_LINE = re.compile(r"[0-9a-f]{64}  .+")


def write_checksums(folder: Path | epath.Path, names: Iterable[str]) -> None:
    """Write the list of the sha256 of the files ``names`` in ``folder``."""
    digests = {name: files.sha256(folder / name) for name in names}
    (folder / CHECKSUMS).write_text(files.listing(digests), encoding="utf-8")


def damages(
    folder: Path | epath.Path, wanted: Collection[str] = (), share: tuple[int, int] = (0, 1), sums: str = CHECKSUMS
) -> Iterator[tuple[str, str]]:
    """Yield (name, what is wrong) for each file that differs from its folder's list, such as ("x", "x is missing").

    Args:
      wanted: names that the list must contain.
      share: (i, n): read only every n-th file of the list, starting with file i.
      sums: the file name of the list.

    Raises:
      FileNotFoundError: the folder has no list.
      OSError: a store does not answer, too many files are open, or a file must not be read.
    """
    try:
        text = reading.read_bytes(folder / sums).decode("utf-8", errors="replace")
    except (reading.NotPlainError, IsADirectoryError) as error:
        yield sums, f"{sums} {_no_file(error)}"
        return
    if unlike := [line for line in text.split("\n") if line and not _LINE.fullmatch(line)]:
        yield sums, f"{sums} is damaged: {unlike[0][:80]!r} is not a sha256, two spaces and a name"
        return
    digests = files.parse_listing(text)
    yield from ((name, f"{sums} does not list {name}") for name in sorted(set(wanted) - set(digests)))
    for name in sorted(digests)[share[0] :: share[1]]:
        if finding := _finding(folder, name, digests[name], sums):
            yield name, finding


def first_damage(folder: Path | epath.Path, wanted: Collection[str] = ()) -> str | None:
    """Return what is wrong with the first file that ``damages`` finds, or None if it finds none."""
    return next((finding for _, finding in damages(folder, wanted)), None)


def _finding(folder: Path | epath.Path, name: str, digest: str, sums: str) -> str | None:
    path = os.path.join(folder, name)
    try:
        if not (files.as_path(path).is_file() if files.is_remote(folder) else os.path.exists(path)):
            return f"{name!r}, which {sums} lists, is missing"
        return None if files.sha256(path) == digest else f"{name} is damaged: its sha256 differs from {sums}"
    except (reading.NotPlainError, IsADirectoryError) as error:
        return f"{name} {_no_file(error)}"
    except OSError as error:
        if is_passing(error) or error.errno in write_errors.FEW or isinstance(error, PermissionError):
            raise
        return f"{name} cannot be read ({error.strerror or error})"


def _no_file(error: OSError) -> str:
    return "is a folder" if isinstance(error, IsADirectoryError) else str(error.strerror)
