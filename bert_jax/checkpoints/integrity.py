"""Finds out whether a saved step is still as it was written.

A save writes the sha256 of the step's files into ``SHA256SUMS``, and the sha256 of its arrays into ``ARRAYS``, by which
damaged arrays can be named. (``_CHECKPOINT_METADATA`` and ``commit_success.txt``, Orbax's own notes of the commit, are
written later, and no restore reads them.) Every reader verifies a step first. Orbax itself would notice only few kinds
of damage and report each in hundreds of lines, because it reads all arrays at once.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import tensorstore as ts
from etils import epath

from bert_jax.errors import few, first_line
from bert_jax.storage import files, reading
from bert_jax.storage.checksums import CHECKSUMS, damages

STATE = "state"
FACTS = "facts/metadata"
ARRAYS = "ARRAYS"
_THREADS = 8  # the number of threads that compute digests


class DamagedStepError(ValueError):
    """A step differs from what was saved. The message names the file and, if possible, the damaged arrays."""

    def of(self, step: int) -> str:
        """Return a sentence that says what is wrong with ``step``."""
        return f"step {step} is damaged: {self}"


class ForeignStepError(DamagedStepError):
    """A step is in the wrong place. The message says which run or step it belongs to."""

    def of(self, step: int) -> str:
        return f"checkpoints/{step} {self}"


def write_lists(folder: str | os.PathLike[str]) -> None:
    """Write ``SHA256SUMS``, and on a local disk ``ARRAYS``, into the folder of a step that is otherwise complete."""
    step = files.as_path(folder)
    names, arrays = _of_items(step), dict[str, str]()
    with ThreadPoolExecutor(_THREADS) as pool:
        values = pool.map(lambda name: files.sha256(step / name), names)
        digests = dict(zip(names, values, strict=True))
        if not files.is_remote(step):
            with contextlib.suppress(ValueError):  # an index of another format: then no array can be named
                arrays = _digests(Path(step) / STATE, pool)
    if arrays:
        (step / ARRAYS).write_text(files.listing(arrays))
        digests[ARRAYS] = files.sha256(step / ARRAYS)
    (step / CHECKSUMS).write_text(files.listing(digests))


def check_step(folder: str | os.PathLike[str], share: tuple[int, int] = (0, 1)) -> None:
    """Raise an error unless the step agrees with its list of sha256.

    Args:
      share: (i, n): only every n-th file is read, starting with file i.

    Raises:
      DamagedStepError: the step differs from what was saved.
      OSError: a store does not answer.
    """
    for finding in findings(folder, share):
        raise DamagedStepError(finding)


def findings(folder: str | os.PathLike[str], share: tuple[int, int] = (0, 1)) -> Iterator[str]:
    """Yield a text for each damaged file of a step that says what is wrong. See ``check_step``."""
    step = files.as_path(folder)
    # the list of the step's upload, or else of its save
    if (sums := next((name for name in (files.MARKER, CHECKSUMS) if (step / name).exists()), None)) is None:
        yield f"{CHECKSUMS} is missing"
        return
    agrees = True
    for name, finding in damages(step, _of_items(step), share, sums):
        agrees = False
        yield finding + _arrays_clause(step, name)
    if agrees:
        yield from _findings_in_items(step, share)


def _findings_in_items(step: epath.Path, share: tuple[int, int]) -> Iterator[str]:
    """Yield a text for each fault of a step that agrees with its list of files: the list may have been rewritten."""
    if (step / FACTS).exists() and reading.parse_object(reading.read_bytes(step / FACTS)) is None:
        yield f"{FACTS} is not a JSON object"
    if files.is_remote(step) or not (step / ARRAYS).exists():
        return
    try:
        if arrays := _damaged_arrays(step, share):
            yield f"the sha256 of {_named(arrays)} differs from {ARRAYS}"
    except ValueError as error:
        yield f"the arrays cannot be compared with {ARRAYS} ({first_line(error).partition('[')[0].strip()})"


def _damaged_arrays(step: epath.Path, share: tuple[int, int] = (0, 1)) -> list[str]:
    """Return the names of the arrays of a local step that differ from its list ``ARRAYS``. ``share``: see
    ``check_step``.

    Raises:
      ValueError: the list or the index of the arrays is damaged.
      OSError: there is no list, or it cannot be read.
    """
    wanted = files.parse_listing(reading.read_bytes(step / ARRAYS).decode())
    with ThreadPoolExecutor(_THREADS) as pool:
        digests = _digests(Path(step) / STATE, pool, sorted(wanted)[share[0] :: share[1]])
    return sorted({key.rpartition("/")[0] for key, digest in digests.items() if digest != wanted[key]})


def _digests(state: Path, pool: Executor, names: Iterable[str] | None = None) -> dict[str, str]:
    """Return the sha256 of every piece of an array, by name, such as ``params.encoder.kernel/0.0``.

    Orbax keeps them in tensorstore's OCDBT format. The digest is "" if the piece cannot be read. If ``names`` is given,
    only these pieces are read.

    Raises:
      ValueError: the index in the local folder ``state`` is damaged.
    """
    store = ts.KvStore.open({"driver": "ocdbt", "base": {"driver": "file", "path": f"{state}/"}}).result()

    def digest(key: bytes) -> str:
        try:
            return sha256(store.read(key).result().value).hexdigest()
        except ValueError:
            return ""

    keys = sorted(store.list().result()) if names is None else [name.encode() for name in names]
    return {key.decode(): value for key, value in zip(keys, pool.map(digest, keys), strict=True)}


def _arrays_clause(step: epath.Path, name: str) -> str:
    """Return a clause that names the arrays that are damaged because the file ``name`` is, or "" if none is known."""
    if files.is_remote(step) or not name.startswith(f"{STATE}/"):
        return ""
    if not all((Path(step) / STATE / other).is_file() for other in files.below(step / STATE)):
        return ""  # tensorstore would wait for a pipe for ever
    with contextlib.suppress(OSError, ValueError):
        if arrays := _damaged_arrays(step):
            return f" ({_named(arrays)})"
    return ""


def _named(arrays: list[str]) -> str:
    return f"array{'s' if len(arrays) > 1 else ''} {few(arrays, 3)}"


def _of_items(step: epath.Path) -> list[str]:
    """Return the names of all files in the subfolders of a step, which hold its items, without hidden files."""
    names = (name for name in files.below(step) if "/" in name)
    return [name for name in names if not any(part.startswith(".") for part in name.split("/"))]
