"""The folder in which all workers of a build write.

A file records each finished part, so an interrupted build goes on with the parts that are missing.

"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from etils import epath

from bert_jax.corpora.parts import Part
from bert_jax.errors import PassingError, UserError
from bert_jax.storage import files, write_errors

FAILED = "failed"  # the folder of the errors of parts


@contextlib.contextmanager
def working(root: str | os.PathLike[str], target: str | os.PathLike[str], key: str) -> Iterator[Workplace]:
    """Open the workplace ``root``, in which ``target`` is made; only one process at a time may hold it.

    It is removed after bad input, and kept for the next try after a kill, Ctrl-C or a full disk. If all goes well, the
    block calls ``become``.
    """
    workplace = Workplace(os.fspath(root))
    if files.is_remote(root):
        workplace.open(key)
        yield workplace
        return
    lock = Path(f"{os.fspath(root)}.lock")
    with write_errors.explained(files.as_path(target), only=write_errors.DISK_TROUBLE):
        try:
            with files.one_at_a_time(lock):
                files.check_new(target)  # another process may have made it meanwhile
                workplace.open(key)
                yield workplace
        except UserError:
            if not workplace.worth_keeping:
                workplace.remove()
            raise


@dataclasses.dataclass(frozen=True)
class Workplace:
    """A folder, local or on an object store. Workers need only its path."""

    root: str

    def open(self, key: str) -> None:
        """Begin, or go on with the files left by a build of the same ``key`` (hash of all that decides the result)."""
        root = files.as_path(self.root)
        if root.exists() and (not (root / files.UNFINISHED).exists() or (root / files.UNFINISHED).read_text() != key):
            root.rmtree()
        files.write_text(root / files.UNFINISHED, key)
        for name in (FAILED, "scratch"):
            if (root / name).exists():
                (root / name).rmtree()

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """Make a local folder to write into, on the file system of the workplace if that is local."""
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
        """Move a finished file to ``name``, where it appears whole or not at all."""
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

    def finish(self, stage: str, part: Part, facts: Mapping[str, Any]) -> None:
        """Record that ``stage`` of a part is done, with its ``facts``."""
        files.write_text(self._facts(stage, part), json.dumps(facts))

    def finished(self, stage: str, part: Part) -> bool:
        return self._facts(stage, part).exists()

    def facts(self, stage: str, part: Part) -> dict[str, Any]:
        """Return the facts that ``finish`` recorded."""
        return json.loads(self._facts(stage, part).read_text())  # type: ignore[no-any-return]

    def fail(self, part: Part, message: str, keep: bool = False, passing: bool = False) -> None:
        """Make all workers stop. ``keep``: the next try uses finished parts; ``passing``: it may succeed unchanged."""
        files.write_text(files.as_path(self.root) / FAILED / part.name, json.dumps([message, keep, passing]))

    @contextlib.contextmanager
    def reporting(self, part: Part) -> Iterator[None]:
        """Record the errors of the block that a user should see; ``raise_failures`` raises them in the main process."""
        try:
            yield
        except UserError as error:
            passing = isinstance(error, PassingError)
            self.fail(part, str(error), keep=passing, passing=passing)
        except OSError as error:
            if error.errno not in write_errors.DISK_TROUBLE:
                raise
            self.fail(part, write_errors.cannot_write(self.root, error), keep=True)

    @property
    def failed(self) -> bool:
        return (files.as_path(self.root) / FAILED).exists()

    @property
    def worth_keeping(self) -> bool:
        """Return whether everything failed because a disk was full or a store did not answer."""
        return self.failed and all(keep for _, keep, _ in self._failures())

    def raise_failures(self) -> None:
        """Raise ``UserError`` with the first errors of parts; ``PassingError`` if all of them may pass."""
        if self.failed:
            failures = self._failures()
            messages = list(dict.fromkeys(message for message, _, _ in failures))
            kind = PassingError if all(passing for _, _, passing in failures) else UserError
            raise kind("; also: ".join(messages[:3]))

    def remove(self) -> None:
        """Remove the folder with all that is in it."""
        root = files.as_path(self.root)
        if root.exists():
            root.rmtree()

    def become(self, output: str | os.PathLike[str], digests: Mapping[str, str]) -> None:
        """Leave the finished files (name -> sha256), and nothing else, at ``output``."""
        root = files.as_path(self.root)
        for name in ("parts", "scratch"):
            if (root / name).exists():
                (root / name).rmtree()
        if files.is_remote(root):
            files.commit(root, digests)
        else:
            (root / files.UNFINISHED).unlink()
            os.replace(self.root, output)  # this replaces an empty folder

    def _failures(self) -> list[tuple[str, bool, bool]]:
        folder = files.as_path(self.root) / FAILED
        return [json.loads(path.read_text()) for path in sorted(folder.iterdir())]

    def _facts(self, stage: str, part: Part) -> epath.Path:
        return files.as_path(self.root) / "parts" / f"{part.name}.{stage}.json"
