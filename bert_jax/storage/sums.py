"""``SHA256SUMS``: in a folder, the sha256 of the files beside it, so that a changed one is not believed.

``sha256sum --check SHA256SUMS`` reads it too. The marker of a folder on an object store has the same form.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path

from bert_jax.storage import files

SUMS = "SHA256SUMS"


def write_sums(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Write the list of the files ``names`` of a local folder and return it: name -> sha256."""
    digests = {name: files.sha256(folder / name) for name in names}
    (folder / SUMS).write_text(files.listing(digests), encoding="utf-8")
    return digests


def first_damage(folder: Path, wanted: Collection[str] = ()) -> str | None:
    """What is wrong with the first file that is not as the list of its folder says: "x is missing"; None: nothing.

    Args:
      wanted: names that the list must have.

    Raises:
      FileNotFoundError: the folder has no list.
    """
    listed = files.listed((folder / SUMS).read_text(encoding="utf-8", errors="replace"))
    if unlisted := sorted(set(wanted) - set(listed)):
        return f"{SUMS} does not list {unlisted[0]}"
    for name, digest in listed.items():
        if not os.path.isfile(os.path.join(folder, name)):
            return f"{name!r}, which {SUMS} lists, is missing"
        if files.sha256(folder / name) != digest:
            return f"{name} is damaged: its sha256 is not that of {SUMS}"
    return None
