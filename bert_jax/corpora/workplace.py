"""The shared work folder of a build, into which all workers write.

Each finished part is recorded in a file, so an interrupted build can continue with the parts that are missing.
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

from bert_jax.corpora.parts import Part
from bert_jax.errors import PassingError, UserError
from bert_jax.storage import files, write_errors

FAILED = "failed"  # the subfolder with the error messages of failed parts


@contextlib.contextmanager
def working(root: str | os.PathLike[str], target: str | os.PathLike[str], key: str) -> Iterator[Workplace]:
    """Context manager that opens the work folder ``root``, in which ``target`` is built, for one process at a time.

    The folder is removed after bad input, and kept for the next try after a kill, Ctrl-C or a full disk. If all goes
    well, the block itself calls ``become`` or ``remove``.
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


@contextlib.contextmanager
def parents_removed(target: str | os.PathLike[str]) -> Iterator[None]:
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
        """Create the folder, or reuse one that an unfinished build with the same ``key`` has left.

        Args:
          key: a hash of everything that the result depends on.
        """
        root = files.as_path(self.root)
        if root.exists() and (not (root / files.UNFINISHED).exists() or (root / files.UNFINISHED).read_text() != key):
            root.rmtree()
        files.write_text(root / files.UNFINISHED, key)
        for name in (FAILED, "scratch"):
            if (root / name).exists():
                (root / name).rmtree()

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

    def once(self, stage: str, part: Part, make: Callable[[Path], Mapping[str, Any]]) -> None:
        """Finish ``stage`` of a part with the facts that ``make`` returns, unless it is finished or a part has failed.

        ``make`` gets an empty local folder. Errors meant for the user are kept for ``raise_failures``.
        """
        if not (self.failed or self.finished(stage, part)):
            with self.reporting(part), self.scratch() as folder:
                self.finish(stage, part, make(folder))

    def finish(self, stage: str, part: Part, facts: Mapping[str, Any]) -> None:
        """Record that ``stage`` of a part is done, with its ``facts``."""
        files.write_text(self._facts(stage, part), json.dumps(facts))

    def finished(self, stage: str, part: Part) -> bool:
        return self._facts(stage, part).exists()

    def facts(self, stage: str, part: Part) -> dict[str, Any]:
        """Return the facts that ``finish`` recorded."""
        return json.loads(self._facts(stage, part).read_text())  # type: ignore[no-any-return]

    def fail(self, part: Part, message: str, keep: bool = False, passing: bool = False) -> None:
        """Record that a part failed with ``message``, which makes all workers stop.

        Args:
          keep: whether to keep the finished parts for the next try.
          passing: whether the same command may succeed later.
        """
        files.write_text(files.as_path(self.root) / FAILED / part.name, json.dumps([message, keep, passing]))

    @contextlib.contextmanager
    def reporting(self, part: Part) -> Iterator[None]:
        """Context manager that records errors meant for the user, for ``raise_failures`` in the main process."""
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
        """Return whether parts have failed, and only because of a disk or an unresponsive store."""
        return self.failed and all(keep for _, keep, _ in self._failures())

    def raise_failures(self) -> None:
        """Raise ``UserError`` with the first messages if parts have failed.

        If all failures are temporary, raise ``PassingError`` instead.
        """
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
        """Turn the work folder into the finished ``output``, without temporary files.

        Args:
          digests: name -> sha256 of each finished file.
        """
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
