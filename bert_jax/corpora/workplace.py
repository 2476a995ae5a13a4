"""The shared work folder of a build, into which all workers write.

The facts of each shard that is done are recorded in a file, so the next try makes only what is missing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from etils import epath

from bert_jax.corpora.source import Shard
from bert_jax.errors import PassingError, UserError
from bert_jax.storage import files, write_errors


@contextlib.contextmanager
def open_workplace(root: str, target: str, key: str) -> Iterator[Workplace]:
    """Context manager that opens the work folder ``root``, in which ``target`` is built, for one process at a time.

    A local folder is removed after bad input, and kept for the next try after a kill, Ctrl-C, a full disk or a store
    that did not answer. If all goes well, the block itself calls ``become`` or ``remove``.

    Args:
      key: a hash of everything that the result depends on.
    """
    workplace, local = Workplace(root), not files.is_remote(root)
    lock = files.one_at_a_time(Path(f"{root}.lock")) if local else contextlib.nullcontext()
    with write_errors.explain(files.as_path(root), only=write_errors.DISK_TROUBLE), lock:
        files.check_new(target)  # another process may have made it meanwhile
        workplace.open(key)
        try:
            yield workplace
        except UserError as error:
            if local and not isinstance(error, PassingError):
                workplace.remove()
            raise


@contextlib.contextmanager
def clean_up_parents(target: str | os.PathLike[str]) -> Iterator[None]:
    """Remove the folders above a local ``target`` that the block made, if it fails and leaves them empty."""
    place = files.as_path(target)
    missing = [] if files.is_remote(place) else [folder for folder in place.absolute().parents if not folder.exists()]
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):  # it was never made, or holds what the next try goes on with
            for folder in missing:  # the innermost first
                folder.rmdir()
        raise


@dataclasses.dataclass(frozen=True)
class Workplace:
    """The shared work folder of a build, local or on an object store. Workers need only its path."""

    root: str

    def open(self, key: str) -> None:
        """Create the folder, or reuse the folder that an unfinished build with the same ``key`` has left."""
        root = files.as_path(self.root)
        if root.exists() and (not (root / files.UNFINISHED).exists() or (root / files.UNFINISHED).read_text() != key):
            root.rmtree()
        files.write_text(root / files.UNFINISHED, key)
        if (root / "scratch").exists():
            (root / "scratch").rmtree()

    def once(self, stage: str, make: Callable[[Shard, Path], Mapping[str, Any]], shard: Shard) -> dict[str, Any]:
        """Return the recorded facts of a shard. If there are none, record the facts that ``make`` returns.

        Args:
          stage: the name of this pass over the shards; a build may have several passes.
          make: gets the shard and an empty local folder.
        """
        record = files.as_path(self.root) / "parts" / f"{shard.name}.{stage}.json"
        if not record.exists():
            with self.scratch() as folder:
                files.write_text(record, json.dumps(make(shard, folder)))
        return json.loads(record.read_text())  # type: ignore[no-any-return]

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """Context manager that makes a temporary local folder, inside the work folder if that is local."""
        beside = None
        if not files.is_remote(self.root):
            beside = Path(self.root) / "scratch"
            beside.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="bert_jax-", dir=beside))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def put(self, source: Path, name: str) -> None:
        """Move a finished local file into the work folder as ``name``, where it appears whole or not at all."""
        target = files.as_path(self.root) / name
        if files.is_remote(target):
            files.copy(epath.Path(source), target)
            return
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        os.replace(source, target)

    def get(self, name: str, folder: Path) -> Path:
        """Return a local path of the file ``name``, copied into ``folder`` if it is remote."""
        source = files.as_path(self.root) / name
        if not files.is_remote(source):
            return Path(source)
        target = folder / source.name
        files.copy(source, epath.Path(target))
        return target

    def remove(self) -> None:
        """Remove the folder with all that is in it."""
        root = files.as_path(self.root)
        if root.exists():
            root.rmtree()

    def become(self, output: str, digests: Mapping[str, str]) -> None:
        """Turn the work folder into the finished ``output``, without temporary files.

        Args:
          digests: name -> sha256 of each finished file.
        """
        root = files.as_path(self.root)
        for record in (root / "parts").glob("*.json"):  # first: after a kill, no record is of files that are gone
            record.unlink()
        for name in ("parts", "scratch"):
            if (root / name).exists():
                (root / name).rmtree()
        if files.is_remote(root):
            files.commit(root, digests)
        else:
            (root / files.UNFINISHED).unlink()
            os.replace(self.root, output)  # this replaces an empty folder
