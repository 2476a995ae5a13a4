"""Reads and checks ``manifest.json``, which describes a store and has the sha256 of its files and of itself.

A store on an object store is copied to each host once, and its hashes are checked: rows are shuffled over the whole
corpus, so every host needs every shard, and all at the same time.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from etils import epath

from bert_jax.errors import UserError
from bert_jax.program import Note
from bert_jax.storage import files, reading
from bert_jax.workdir import file_formats

MANIFEST = "manifest.json"
SPLITS = ("train", "heldout")
SEAL = "sha256"  # the key of the digest of the manifest itself
_OLD_KEY = "format_version"  # the key of the number of formats 1 and 2
_ADVICE = "`bert-jax corpus --verify=DIR` names all that is damaged: copy that again, or remove and rebuild the corpus"
SPARE_BYTES = 1 << 30  # bytes of the disk that stay free for everything else
AnyPath: TypeAlias = Path | epath.Path  # local or on an object store


class DamagedError(UserError):
    """Raised if a file of a store is missing or has changed since it was written."""

    def __init__(self, finding: str) -> None:
        """
        Args:
          finding: which file is damaged, and how.
        """
        super().__init__(finding)
        self.finding = finding

    def __str__(self) -> str:
        return f"{self.finding}; {_ADVICE}"


def fingerprint(
    tokenizer_sha256: str, splits: Mapping[str, Mapping[str, Any]], columns: Mapping[str, Mapping[str, Any]]
) -> str:
    """Return the hash of the vocabulary, all tokens, all boundaries of sentences and documents, and all columns."""
    hashes = [tokenizer_sha256, *(splits[name]["fingerprint"] for name in SPLITS)]
    hashes += [f"{name} {facts['fingerprint']}" for name, facts in columns.items()]
    return hashlib.sha256("\n".join(hashes).encode()).hexdigest()


def seal(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``manifest`` after a round trip through JSON, with its digest added."""
    manifest = json.loads(json.dumps(manifest))
    return {**manifest, SEAL: _digest(manifest)}


def _digest(manifest: Mapping[str, Any]) -> str:
    content = {name: value for name, value in manifest.items() if name != SEAL}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read(folder: AnyPath) -> dict[str, Any]:
    """Return the manifest of the store in ``folder``.

    Raises:
      DamagedError: the manifest is not as it was written.
      UserError: there is no manifest, or it has another format.
    """
    try:
        text = reading.read_bytes(folder / MANIFEST)
    except reading.NotPlainError as error:
        raise DamagedError(f"{folder / MANIFEST} {error.strerror}") from error
    except OSError as error:
        if names := _stores(folder):
            raise UserError(
                f"{folder} is a mixture of {', '.join(names)}; name one of them: {folder / names[0]}"
            ) from error
        raise UserError(
            f"{folder} is not a corpus (no readable {MANIFEST}); build one with `bert-jax corpus`"
        ) from error
    return parse(text, folder / MANIFEST)


def _stores(folder: AnyPath) -> list[str]:
    """Return the sorted names of a mixture's stores (subfolders of ``folder``); [] if ``folder`` is not a mixture."""
    return sorted(path.name for path in folder.iterdir() if (path / MANIFEST).exists()) if folder.is_dir() else []


def parse(text: str | bytes, where: AnyPath) -> dict[str, Any]:
    """Return the manifest parsed from ``text``. Raises the same errors as ``read``.

    Args:
      where: the path of the manifest, for error messages.
    """
    try:
        manifest = json.loads(text)
        ours = manifest.get(file_formats.KEY) == file_formats.CORPUS.number
        whole = manifest[SEAL] == _digest(manifest) if ours else bool({file_formats.KEY, _OLD_KEY} & manifest.keys())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        whole = False
    if not whole:
        raise DamagedError(f"{where} is damaged: it is not as it was written")
    file_formats.CORPUS.check(manifest, f"the corpus {where.parent}", "build it again")
    return manifest  # type: ignore[no-any-return]


def check_file(path: AnyPath, facts: Mapping[str, Any], digest: Callable[[Any], str] | None = files.sha256) -> None:
    """Raise ``DamagedError`` unless a file is as the manifest says.

    Args:
      facts: the file's ``bytes`` and ``sha256``.
      digest: a function that returns the sha256 of a file. If None, only the size is checked.
    """
    try:
        size = path.stat().st_size if isinstance(path, Path) else facts["bytes"]
        if size != facts["bytes"]:
            raise DamagedError(f"{path} is damaged: it has {size:,} bytes, the manifest says {facts['bytes']:,}")
        if digest is not None and digest(path) != facts["sha256"]:
            raise DamagedError(f"{path} is damaged: its sha256 is not that of the manifest")
    except FileNotFoundError as error:
        raise DamagedError(f"{path} is missing") from error
    except OSError as error:
        raise DamagedError(f"{path} cannot be read ({error.strerror or error})") from error


def verify(path: str | os.PathLike[str]) -> Iterator[tuple[AnyPath, str | None]]:
    """Yield (file, damage) for every file of the store or mixture at ``path``. The damage is None if a file is intact.

    Raises:
      UserError: ``path`` is not a store, or has another format.
    """
    root: AnyPath = files.as_path(path) if files.is_remote(path) else Path(files.as_path(path))
    folders = [root] if (root / MANIFEST).exists() else [root / name for name in _stores(root)]
    for folder in folders or [root]:
        try:
            entries = read(folder)["files"]
        except DamagedError as error:
            yield folder / MANIFEST, error.finding
            continue
        yield folder / MANIFEST, None
        for name, facts in entries.items():
            try:
                check_file(folder / name, facts)
                yield folder / name, None
            except DamagedError as error:
                yield folder / name, error.finding


def stage(path: str | os.PathLike[str], note: Note | None = None) -> Path:
    """Return the local folder of a corpus, after copying missing files of a remote corpus into it.

    Args:
      note: called with a line that says how many bytes were copied, and how fast.

    Raises:
      UserError: the remote folder is not a whole corpus, one of its files is damaged, or the disk is too small.
    """
    if not files.is_remote(path):
        return Path(files.as_path(path))
    remote = files.as_path(path)
    if not files.is_whole(remote):
        raise UserError(f"{remote} has no {files.MARKER} marker: it is not there or not whole; write it again")
    text = (remote / MANIFEST).read_text()
    entries = parse(text, remote / MANIFEST)["files"]
    folder = files.cache_directory() / "staged" / hashlib.sha256(f"{remote}\n{text}".encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    missing = {name: facts for name, facts in entries.items() if not (folder / name).exists()}
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
