"""Where plans are kept: one memory-mapped ``.npy`` file an epoch, made once, shared by all processes of a machine."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from bert_jax import files
from bert_jax.errors import UserError
from bert_jax.rows.plan import PAIR, Pairs

Make = Callable[[int], Iterable[Pairs]]  # epoch -> its pairs, in blocks

_KEPT_ON_DISK = 3  # epochs made last; epoch 0 is always kept, since its length is rows_per_epoch
_KEPT_OPEN = 4


class PlanCache:
    """Plans of one (corpus, config, seed, phase), by epoch.

    A plan can always be made again, so nothing here is precious: processes that make the same one write the same bytes,
    a file appears whole by a rename, and one that cannot be read is made anew.
    """

    def __init__(self, directory: str | os.PathLike[str] | None, key: str, make: Make):
        """
        Args:
          directory: the folder of the corpus; plans go to ``<directory>/plans/<key>``, or to the local cache folder
            where there is none, or none that can be written.
          key: hex digest of all that the plans depend on, the epoch aside.
          make: what makes a plan that is not there.
        """
        self._folder = _writable_folder(directory, key)
        self._make = make
        self._open: dict[int, Pairs] = {}

    def load(self, epoch: int) -> Pairs:
        """Pairs of ``epoch``, memory-mapped, in corpus order; made now if it is not there."""
        if epoch not in self._open:
            pairs = self._read(epoch)
            if pairs is None:
                pairs = self._build(epoch)
            while len(self._open) >= _KEPT_OPEN:
                self._open.pop(next(iter(self._open)))
            self._open[epoch] = pairs
        return self._open[epoch]

    def prepare(self, epoch: int) -> threading.Thread | None:
        """Begin to make a plan in the background, unless it is there."""
        if self._path(epoch).exists():
            return None
        thread = threading.Thread(target=self._try_build, args=(epoch,), name=f"plan-{epoch}", daemon=True)
        thread.start()
        return thread

    def _path(self, epoch: int) -> Path:
        return self._folder / f"epoch-{epoch:05d}.npy"

    def _read(self, epoch: int) -> Pairs | None:
        try:
            pairs = np.load(self._path(epoch), mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError):  # absent, or cut short by a full disk or a power failure
            return None
        return pairs if pairs.dtype == PAIR else None

    def _build(self, epoch: int) -> Pairs:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with _one_at_a_time(self._folder / "lock"):
                if (pairs := self._read(epoch)) is None:  # another process may have made it while this one waited
                    _write(self._path(epoch), self._make(epoch))
                    self._forget_all_but(epoch)
                    pairs = self._read(epoch)
        except OSError as error:
            raise UserError(
                f"cannot write the chunk plan {self._path(epoch)}: {error.strerror or error}; "
                "free some space or set BERT_JAX_CACHE to a folder that can be written"
            ) from error
        if pairs is None:
            raise UserError(f"cannot read back the chunk plan {self._path(epoch)}; remove {self._folder}")
        return pairs

    def _try_build(self, epoch: int) -> None:
        with contextlib.suppress(UserError):  # whoever needs the plan meets the error in load()
            self._build(epoch)

    def _forget_all_but(self, epoch: int) -> None:
        """Remove the plans made longest ago: a run that went back needs the older epochs, not the newer."""
        others = [path for path in self._folder.glob("epoch-*.npy") if path not in (self._path(0), self._path(epoch))]
        with contextlib.suppress(FileNotFoundError):  # another process tidies up too
            for path in sorted(others, key=lambda path: path.stat().st_mtime_ns)[: 1 - _KEPT_ON_DISK]:
                path.unlink()  # a map of it that is open stays valid


def _writable_folder(directory: str | os.PathLike[str] | None, key: str) -> Path:
    if directory is not None and not files.is_remote(directory):
        beside = Path(directory) / "plans" / key
        existing = next(p for p in (beside, *beside.parents) if p.exists())
        if os.access(existing, os.W_OK):
            return beside
    return files.cache_directory() / "plans" / key


def _write(path: Path, blocks: Iterable[Pairs]) -> None:
    """Write blocks one after another as one ``.npy`` array; the header, of fixed size, gets the count at the end."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        with open(temporary, "wb") as file:
            _write_header(file, 0)
            rows = 0
            for block in blocks:
                file.write(block.tobytes())
                rows += len(block)
            file.seek(0)
            _write_header(file, rows)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _write_header(file: BinaryIO, rows: int) -> None:
    descr = np.lib.format.dtype_to_descr(PAIR)
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": (rows,)})


@contextlib.contextmanager
def _one_at_a_time(path: Path) -> Iterator[None]:
    """Hold a lock that a killed holder lets go; none where the file system has no locks."""
    with open(path, "w") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
