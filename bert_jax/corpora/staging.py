"""Copies a corpus from an object store to each host once, and checks its hashes.

If the disk has enough space, the whole corpus is copied; otherwise each shard is copied when rows need it. Rows are
shuffled over the whole corpus, so every host needs every shard sooner or later. If only a part of the corpus fits on
the disk, shards are fetched again and again; give the host a larger disk if that slows the run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import re
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


def stage(path: str | os.PathLike[str], note: Note | None = None) -> tuple[Path, RemoteShards | None]:
    """Return the local folder of a corpus, and a ``RemoteShards`` (None if all shards are in the folder).

    Args:
      note: called with a line that says what was copied, and how fast.

    Raises:
      UserError: the remote folder is not a whole corpus, or one of its files is damaged.
    """
    if not files.is_remote(path):
        return Path(files.as_path(path)), None
    remote = files.as_path(path)
    if not files.committed(remote):
        raise UserError(f"{remote} has no {files.MARKER} marker: it is not there or not whole; write it again")
    text = (remote / MANIFEST).read_text()
    listed = manifests.parse(text, remote / MANIFEST)["files"]
    folder = files.cache_directory() / "staged" / hashlib.sha256(f"{remote}\n{text}".encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    missing = {name: facts for name, facts in listed.items() if not (folder / name).exists()}
    needed = sum(facts["bytes"] for facts in missing.values())
    lazy = needed + SPARE_BYTES > shutil.disk_usage(folder).free
    start, copied = time.perf_counter(), 0
    for name, facts in missing.items():
        if not (lazy and is_shard(name)):
            fetch(remote / name, folder / name, facts["sha256"])
            copied += facts["bytes"]
    files.write_text(folder / MANIFEST, text)
    if note and copied:
        seconds = time.perf_counter() - start
        note(f"staged {copied / 1e6:,.0f} MB of {remote} in {seconds:.0f} s ({copied / 1e6 / seconds:,.0f} MB/s)")
    if not lazy:
        return folder, None
    if note:
        note(f"{needed / 1e9:,.1f} GB of {remote} are more than the disk holds: shards come as rows need them")
    return folder, RemoteShards(os.fspath(remote), folder)


def is_shard(name: str) -> bool:
    """Return whether a file of a corpus holds tokens or the values of a column."""
    return re.fullmatch(r".*\.array_record-\d+-of-\d+", name) is not None


def fetch(source: epath.Path, target: Path, sha256: str) -> None:
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


@dataclasses.dataclass(frozen=True)
class RemoteShards:
    """Fetches shards into ``folder``, and removes the least recently used shards if space is needed."""

    remote: str
    folder: Path

    def fetch(self, name: str) -> Path:
        """Return the local path of a shard, after copying it if it is not there."""
        target = self.folder / name
        if not target.exists():
            facts = manifests.read(self.folder)["files"][name]
            self._make_room(facts["bytes"])
            fetch(files.as_path(self.remote) / name, target, facts["sha256"])
        with contextlib.suppress(FileNotFoundError):
            os.utime(target)
        return target

    def _make_room(self, needed: int) -> None:
        shards = [path for path in self.folder.rglob("*") if is_shard(path.name)]
        for path in sorted(shards, key=lambda path: path.stat().st_mtime_ns):
            if shutil.disk_usage(self.folder).free >= needed + SPARE_BYTES:
                return
            path.unlink(missing_ok=True)  # a process that has the file open can still read it
