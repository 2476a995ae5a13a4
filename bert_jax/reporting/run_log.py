"""Writes ``metrics.jsonl``, the record of a run's figures. All loggers, charts and reports are made from it."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

from bert_jax.errors import PassingError, UserError
from bert_jax.program import warn
from bert_jax.reporting.formats import is_number
from bert_jax.reporting.loggers.base import LoggerProtocol, Record, RunFacts
from bert_jax.storage import files, reading, write_errors

FILE = "metrics.jsonl"
_MIRRORED = (FILE, "events")  # the files and folders that an object store gets
_PERIOD_SECONDS = 30.0  # between uploads; stores charge for writes and limit their rate


class RunLog:
    """Appends records to ``workdir/metrics.jsonl`` and passes them to the loggers.

    A line is written in one piece, so a kill can only leave the last line incomplete; the next start drops such a line.
    An object store cannot append, so there the file is kept in the local cache folder and uploaded whole, by ``flush``
    and every 30 s. Only process 0 of a job keeps a log.

    A logger or an upload that fails never stops training: a warning is printed once. A line that the disk refuses is
    written again with the next line. Only ``flush`` raises, if the disk or the store still refuses.
    """

    def __init__(self, workdir: str | os.PathLike[str], loggers: Sequence[LoggerProtocol] = ()):
        self._mirror = _Mirror(workdir) if files.is_remote(workdir) else None
        self._folder = self._mirror.local if self._mirror else Path(files.as_path(workdir))
        self._folder.mkdir(parents=True, exist_ok=True)
        if self._mirror:
            self._mirror.pull()
        self._path = self._folder / FILE
        self._loggers = list(loggers)
        self._waiting = b""  # lines that could not be written yet
        self._open()

    def start(self, run: Mapping[str, Any]) -> None:
        """Start the loggers, which may write into the log's local folder. ``run`` is the content of ``run.json``."""
        facts = RunFacts(run["run_id"], run["name"], str(self._folder), dict(run["config"]))
        self._tell(lambda logger: logger.start(facts))

    def write(self, step: int, split: str, metrics: Mapping[str, Any]) -> None:
        """Append one record. Values are numbers, None or text (such as the phase).

        NaN and infinity are written as null.
        """
        values = {name: _plain(value) for name, value in metrics.items()}
        record = {"step": int(step), "split": split, "time": round(time.time(), 3), **values}
        was_waiting = bool(self._waiting)
        self._waiting += json.dumps(record, ensure_ascii=False, allow_nan=False).encode() + b"\n"
        if (error := self._append()) and not was_waiting:
            warn(f"cannot write {self._path}: {error}; training goes on to the next save")
        self._tell(lambda logger: logger.log(record["step"], split, record["time"], values))
        if self._mirror:
            self._mirror.push_soon()

    def cut_back(self, step: int) -> float:
        """Remove the records after ``step``, here and in the loggers; return the seconds of work that are lost.

        If no record is left, all work is lost, and the result is infinite.
        """
        lines = [(line, _parse(line)) for line in reading.read_bytes(self._path).splitlines(keepends=True)]
        written = [(line, record) for line, record in lines if record]
        kept = [(line, record) for line, record in written if record["step"] <= step]
        self._file.close()
        self._waiting = b""
        files.write_bytes(self._path, b"".join(line for line, _ in kept))
        self._open()
        self._tell(lambda logger: logger.cut_back([record for _, record in kept]))
        if written and not kept:
            return math.inf
        before, after = (max((record["time"] for _, record in part), default=0.0) for part in (written, kept))
        return max(0.0, before - after)

    def records(self) -> list[Record]:
        """Return all records in the order in which they were written."""
        return read_records(self._folder)

    def flush(self) -> None:
        """Write and upload everything that is still waiting. Call this before a save: no checkpoint may be newer than
        the log.

        Raises:
          UserError: the disk refuses a write. The error is a ``PassingError`` if a store does not answer.
        """
        if error := self._append():
            remedy = write_errors.REMEDIES.get(error.errno or 0, "mend that")
            raise UserError(
                f"cannot write {self._path}: {error.strerror or error}; steps saved before are whole: {remedy}, then "
                "run the same command to go on from the newest"
            ) from error
        if self._mirror:
            self._mirror.push()

    def close(self) -> None:
        """Close the loggers and the file, then upload. A second call does nothing."""
        self._tell(lambda logger: logger.close())
        self._loggers.clear()
        if not self._file.closed:
            self._append()
        self._file.close()
        if self._mirror:
            self._mirror.close()

    def _open(self) -> None:
        content = reading.read_bytes(self._path) if self._path.exists() else b""
        self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115 - stays open during the run
        self._size = content.rfind(b"\n") + 1
        self._file.truncate(self._size)

    def _append(self) -> OSError | None:
        """Write all waiting lines, or none of them. Return the error if the disk refuses."""
        left = self._waiting
        try:
            while left:  # a write to an almost full disk may be partial
                left = left[self._file.write(left) :]
            self._size += len(self._waiting)
            self._waiting = b""
        except OSError as error:
            self._file.truncate(self._size)
            return error
        return None

    def _tell(self, call: Callable[[LoggerProtocol], None]) -> None:
        for logger in list(self._loggers):
            try:
                call(logger)
            except Exception as error:  # third-party code that uses a network may raise anything
                self._loggers.remove(logger)
                name = type(logger).__module__.rpartition(".")[2]
                warn(f"the logger {name} failed and is switched off: {type(error).__name__}: {error}")


def read_records(workdir: str | os.PathLike[str]) -> list[Record]:
    """Return the records of the run in ``workdir``, without an incomplete line; [] if it has no log."""
    path = files.as_path(workdir) / FILE
    lines = reading.read_bytes(path).splitlines() if path.exists() else []
    return [record for record in map(_parse, lines) if record]


def records_of(workdir: str | os.PathLike[str]) -> list[Record]:
    """Return the records of the run in ``workdir``. Raises ``UserError`` if there is no record of a run."""
    if records := read_records(workdir):
        return records
    path = files.as_path(workdir) / FILE
    if path.exists():
        raise UserError(f"{path} holds no record yet; wait for the first evaluation")
    raise UserError(f"{workdir} has no {FILE}: nothing was trained there; give the --workdir of a run")


def _parse(line: bytes) -> Record | None:
    record = reading.parse_object(line)
    if record is None or not isinstance(record.get("split"), str) or not isinstance(record.get("step"), int):
        return None
    sound = all(value is None or isinstance(value, (str, bool)) or is_number(value) for value in record.values())
    return record if sound and is_number(record.get("time")) else None


def _plain(value: Any) -> Any:
    """Return a value as plain JSON: numpy numbers become Python numbers, and NaN and infinity become None."""
    if value is None or isinstance(value, (str, bool)):
        return value
    number = float(value)
    if not math.isfinite(number):
        return None
    return int(value) if number.is_integer() and hasattr(value, "__index__") else number


class _Mirror:
    """Keeps the log on an object store, which cannot append to a file: changed files of ``local`` are uploaded whole.

    A warning is printed about an upload that failed.
    """

    def __init__(self, remote: str | os.PathLike[str]):
        self._remote = files.as_path(remote)
        self.local = files.cache_directory() / "logs" / sha256(os.fspath(remote).encode()).hexdigest()[:16]
        self.local.mkdir(parents=True, exist_ok=True)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="upload")
        self._pending: Future[None] | None = None
        self._last = time.monotonic()
        self._uploaded: dict[str, tuple[int, int]] = {}  # name -> (size, modification time) when uploaded

    def pull(self) -> None:
        """Replace the local ``FILE`` by its remote copy; remove the local file if there is no copy.

        A local file that begins with the whole copy is kept: its process was killed before it had uploaded the rest.
        """
        here, there = self.local / FILE, self._remote / FILE
        if not there.exists():
            here.unlink(missing_ok=True)
            return
        data = there.read_bytes()
        if not (here.exists() and reading.read_bytes(here).startswith(data)):
            here.write_bytes(data)

    def push_soon(self) -> None:
        """Start an upload of changed files in the background, at most once per ``_PERIOD_SECONDS``."""
        busy = self._pending is not None and not self._pending.done()
        if not busy and time.monotonic() - self._last >= _PERIOD_SECONDS:
            self._last = time.monotonic()
            self._pending = self._thread.submit(self._push)

    def push(self) -> None:
        """Upload changed files now, and wait until done. Raises ``PassingError`` if the store does not answer."""
        self._thread.submit(self._push, raises=PassingError).result()

    def close(self) -> None:
        """Wait for a running upload, then upload the files that have changed since."""
        self._thread.shutdown()
        self._push()

    def _push(self, raises: type[Exception] | tuple[()] = ()) -> None:
        try:
            sizes = {name: (path.stat().st_size, path.stat().st_mtime_ns) for name, path in self._walk(self.local)}
            if sizes.keys() != self._uploaded.keys():
                for name in {name for name, _ in self._walk(self._remote)} - sizes.keys():
                    (self._remote / name).unlink()
            for name in sorted(name for name in sizes if sizes[name] != self._uploaded.get(name)):
                files.write_bytes(self._remote / name, (self.local / name).read_bytes())
            self._uploaded = sizes
        except raises:
            raise
        except Exception as error:  # a store's client may raise anything; training goes on
            warn(f"cannot upload the logs to {self._remote}: {error}; trying again later")

    def _walk(self, root: Any) -> Iterator[tuple[str, Any]]:
        """Yield (name relative to ``root``, path) of every mirrored file."""
        waiting = [(name, root / name) for name in _MIRRORED]
        while waiting:
            name, path = waiting.pop()
            if path.is_dir():
                waiting += [(f"{name}/{entry.name}", entry) for entry in path.iterdir()]
            elif path.exists():
                yield name, path
