"""Keeps plans on disk: one folder of memory-mapped arrays per epoch, made once for all processes of a machine.

Plans decide the rows, so a wrong plan must not be used. Each plan has a list of sha256 checksums and a file with the
key and epoch that the plan was made for; both are checked when a plan is opened (about a second per gigabyte).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from etils import epath

from bert_jax.errors import UserError
from bert_jax.program import warn
from bert_jax.storage import files, reading, write_errors
from bert_jax.storage.checksums import first_damage, write_checksums

Plan = Mapping[str, np.ndarray]  # the arrays of a plan by name, each with one axis
Blocks = Iterable[tuple[str, np.ndarray]]  # (name of an array, its next block)
Make = Callable[[int], Blocks]  # returns the plan of an epoch, block by block

_KEPT_ON_DISK = 3  # this many of the newest plans, and always epoch 0's, because its length is rows_per_epoch
_KEPT_OPEN = 4
LOCK = "lock"
_OF = "PLAN_OF"  # the file of a plan that says which key and epoch it was made for


class PlanCache:
    """Plans of one (corpus, config, seed, phase), by epoch.

    A plan can always be made again. Processes that make the same plan write the same bytes. A plan gets its name by a
    rename when it is complete. A damaged plan, or a plan of another run, is made anew with a warning.
    """

    def __init__(
        self, directory: str | os.PathLike[str] | None, key: str, dtypes: Mapping[str, npt.DTypeLike], make: Make
    ):
        """
        Args:
          directory: the folder of the corpus. Plans go to ``<directory>/plans/<key>``, or to the local cache folder if
            ``directory`` is None, remote or not writable.
          key: hex digest of all that the plans depend on, except the epoch.
          dtypes: the dtype of every array.
          make: the function that makes the plan of an epoch.
        """
        self._key, self._folder = key, _writable_folder(directory, key)
        self._dtypes, self._make = {name: np.dtype(dtype) for name, dtype in dtypes.items()}, make
        self._open: dict[int, Plan] = {}
        self._prepared: set[int] = set()  # epochs

    def load(self, epoch: int) -> Plan:
        """Return the plan of ``epoch``, memory-mapped; it is made now if it is absent."""
        if epoch not in self._open:
            plan = self._read(epoch)
            if plan is None:
                plan = self._build(epoch)
            while len(self._open) >= _KEPT_OPEN:
                self._open.pop(next(iter(self._open)), None)  # another thread may do the same
            self._open[epoch] = plan
        return self._open[epoch]

    def prepare(self, epoch: int) -> threading.Thread | None:
        """Begin to make the plan of ``epoch`` in the background, once; return the thread, or None if there is none."""
        if epoch in self._prepared or self._path(epoch).exists():
            return None
        self._prepared.add(epoch)
        thread = threading.Thread(target=self._try_build, args=(epoch,), name=f"plan-{epoch}", daemon=True)
        thread.start()
        return thread

    def _path(self, epoch: int) -> Path:
        return self._folder / f"epoch-{epoch:05d}"

    def _of(self, epoch: int) -> bytes:
        return f"{self._key} {epoch}\n".encode()

    def _read(self, epoch: int) -> Plan | None:
        path = self._path(epoch)
        try:
            whole = first_damage(path, wanted=[*self._dtypes, _OF]) is None
            if whole and reading.has_content(path / _OF, self._of(epoch)):
                return {name: _map(path / name, dtype) for name, dtype in self._dtypes.items()}
        except (OSError, ValueError) as error:  # the plan is absent, or is not whole
            if write_errors.number_of(error) in write_errors.FEW:
                raise
        return None

    def _build(self, epoch: int) -> Plan:
        path = self._path(epoch)
        try:
            with write_errors.explain(epath.Path(path)), files.one_at_a_time(self._folder / LOCK):
                files.sweep(self._folder)
                if (plan := self._read(epoch)) is None:  # another process may have made it while this one waited
                    if path.exists():
                        warn(f"the cached plan {path} is damaged or of another run; it is made anew")
                        shutil.rmtree(path, ignore_errors=True)
                    self._write(epoch)
                    self._forget_all_but(epoch)
                    plan = self._read(epoch)
        except UserError as error:  # perhaps another host has made the plan: some file systems lock only within a host
            if (plan := self._read(epoch)) is None:
                if isinstance(error.__cause__, OSError):
                    place = "plans of a corpus in a folder that cannot be written are in the folder BERT_JAX_CACHE"
                    raise type(error)(f"{error}; {place}") from error
                raise
        if plan is None:
            raise UserError(f"cannot read back the chunk plan {path}; remove {self._folder}")
        return plan

    def _write(self, epoch: int) -> None:
        """Write each block to the file of its array."""
        with files.whole_directory(self._path(epoch)) as folder:
            with contextlib.ExitStack() as stack:
                open_files = {name: stack.enter_context(open(folder / name, "wb")) for name in self._dtypes}
                for name, block in self._make(epoch):
                    open_files[name].write(block.astype(self._dtypes[name], copy=False).tobytes())
            (folder / _OF).write_bytes(self._of(epoch))
            write_checksums(folder, [*self._dtypes, _OF])

    def _try_build(self, epoch: int) -> None:
        with contextlib.suppress(UserError):  # load() raises the error where the plan is needed
            self._build(epoch)

    def _forget_all_but(self, epoch: int) -> None:
        """Remove the plans that were made longest ago, but not the plans of epoch 0 and ``epoch``.

        The age decides, not the epoch number, because a run that went back needs earlier epochs.
        """
        kept = (self._path(0), self._path(epoch))
        others = [p for p in self._folder.glob("epoch-*") if p not in kept and not p.name.endswith(".tmp")]
        with contextlib.suppress(FileNotFoundError):  # another process tidies up too
            for path in sorted(others, key=lambda path: path.stat().st_mtime_ns)[: 1 - _KEPT_ON_DISK]:
                shutil.rmtree(path)  # an open memory map of this plan stays valid


def _writable_folder(directory: str | os.PathLike[str] | None, key: str) -> Path:
    if directory is not None and not files.is_remote(directory):
        beside = Path(directory) / "plans" / key
        existing = next(p for p in (beside, *beside.parents) if p.exists())
        if os.access(existing, os.W_OK):
            return beside
    return files.cache_directory() / "plans" / key


def _map(path: Path, dtype: np.dtype) -> np.ndarray:
    """Return the array that ``_write`` wrote, memory-mapped. An empty file cannot be mapped."""
    return np.memmap(path, dtype, "r") if path.stat().st_size else np.empty(0, dtype)
