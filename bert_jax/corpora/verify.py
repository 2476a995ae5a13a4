"""Checks that the files of a store are as they were written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from bert_jax.corpora import manifest as manifests
from bert_jax.corpora.manifest import AnyPath, DamagedError
from bert_jax.storage import files


def verify(path: str | os.PathLike[str]) -> Iterator[tuple[AnyPath, str | None]]:
    """Yield (file, damage) for every file of the store or mixture at ``path``. The damage is None if a file is intact.

    Raises:
      UserError: ``path`` is not a store, or has another format.
    """
    root: AnyPath = files.as_path(path) if files.is_remote(path) else Path(files.as_path(path))
    folders = [root] if (root / manifests.MANIFEST).exists() else [root / name for name in manifests.parts(root)]
    for folder in folders or [root]:
        try:
            listed = manifests.read(folder)["files"]
        except DamagedError as error:
            yield folder / manifests.MANIFEST, error.finding
            continue
        yield folder / manifests.MANIFEST, None
        for name, facts in listed.items():
            try:
                manifests.check_file(folder / name, facts)
                yield folder / name, None
            except DamagedError as error:
                yield folder / name, error.finding
