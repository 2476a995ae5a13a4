"""Copies a corpus from an object store to each host once, and checks its hashes.

Rows are shuffled over the whole corpus, so every host needs every shard, and all at the same time.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from etils import epath

from bert_jax.corpora import manifest as manifests
from bert_jax.corpora.manifest import MANIFEST
from bert_jax.errors import UserError
from bert_jax.storage import files

SPARE_BYTES = 1 << 30  # bytes of the disk that stay free for everything else
Note = Callable[[str], None]


def stage(path: str | os.PathLike[str], note: Note | None = None) -> Path:
    """Return the local folder of a corpus, after copying there what is missing of a remote one.

    Args:
      note: called with a line that says what was copied, and how fast.

    Raises:
      UserError: the remote folder is not a whole corpus, one of its files is damaged, or the disk is too small.
    """
    if not files.is_remote(path):
        return Path(files.as_path(path))
    remote = files.as_path(path)
    if not files.committed(remote):
        raise UserError(f"{remote} has no {files.MARKER} marker: it is not there or not whole; write it again")
    text = (remote / MANIFEST).read_text()
    listed = manifests.parse(text, remote / MANIFEST)["files"]
    folder = files.cache_directory() / "staged" / hashlib.sha256(f"{remote}\n{text}".encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    missing = {name: facts for name, facts in listed.items() if not (folder / name).exists()}
    needed, free = sum(facts["bytes"] for facts in missing.values()), shutil.disk_usage(folder).free
    if missing and needed + SPARE_BYTES > free:
        raise UserError(
            f"{remote} needs {needed / 1e9:,.1f} GB in {folder}, where {free / 1e9:,.1f} GB are free, of which "
            f"{SPARE_BYTES / 1e9:.1f} GB are left alone; free some space, or name a folder of a larger disk as "
            "BERT_JAX_CACHE"
        )
    start = time.perf_counter()
    for name, facts in missing.items():
        _fetch(remote / name, folder / name, facts["sha256"])
    files.write_text(folder / MANIFEST, text)
    if note and missing:
        seconds = time.perf_counter() - start
        note(f"staged {needed / 1e6:,.0f} MB of {remote} in {seconds:.0f} s ({needed / 1e6 / seconds:,.0f} MB/s)")
    return folder


def _fetch(source: epath.Path, target: Path, sha256: str) -> None:
    """Copy a file, whole or not at all, once for all processes of the host. Raises ``UserError`` if it is damaged."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with files.one_at_a_time(target.with_name(f"{target.name}.lock")):
        if target.exists():
            return
        temporary = target.with_name(f"{target.name}.tmp")
        files.copy(source, epath.Path(temporary))
        if files.sha256(temporary) != sha256:
            temporary.unlink()
            raise UserError(f"{source} is damaged: its sha256 is not that of the manifest; write the corpus again")
        os.replace(temporary, target)
