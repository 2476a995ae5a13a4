"""Writes ``metrics.jsonl``, the record of a run's figures from which all loggers, charts and reports are made."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bert_jax.errors import UserError
from bert_jax.program import warn as warn_on_stderr
from bert_jax.reporting.formats import is_number
from bert_jax.reporting.loggers.base import LoggerProtocol, Record, RunFacts
from bert_jax.reporting.mirror import Mirror
from bert_jax.storage import files, reading, write_errors

FILE = "metrics.jsonl"
MIRRORED = (FILE, "events")


class RunLog:
    """Appends records to ``workdir/metrics.jsonl`` and passes them to the loggers.

    A line is written in one piece, so a kill can only leave the last line incomplete; the next start drops such a line.
    An object store cannot append, so there the file is kept in the local cache folder and uploaded whole, by ``flush``
    and every 30 s. Only process 0 of a job keeps a log.

    A logger or an upload that fails never stops training; ``warn`` is called once with the failure. A line that the
    disk refuses is written again with the next line. Only ``flush`` raises, if the disk or the store still refuses.
    """

    def __init__(
        self,
        workdir: str | os.PathLike[str],
        loggers: Sequence[LoggerProtocol] = (),
        warn: Callable[[str], None] = warn_on_stderr,
    ):
        self._warn = warn
        self._mirror = Mirror(workdir, MIRRORED, warn) if files.is_remote(workdir) else None
        self._folder = self._mirror.local if self._mirror else Path(files.as_path(workdir))
        self._folder.mkdir(parents=True, exist_ok=True)
        if self._mirror:
            self._mirror.pull(FILE)
        self._path = self._folder / FILE
        self._loggers = list(loggers)
        self._waiting = b""  # lines that could not be written yet
        self._open()

    def start(self, run: RunFacts) -> None:
        """Start the loggers, which may write into the log's local folder."""
        local = replace(run, workdir=str(self._folder))
        self._tell(lambda logger: logger.start(local))

    def write(self, step: int, split: str, metrics: Mapping[str, Any]) -> None:
        """Append one record. Values are numbers, None or text (such as the phase).

        NaN and infinity are written as null.
        """
        values = {name: _plain(value) for name, value in metrics.items()}
        record = {"step": int(step), "split": split, "time": round(time.time(), 3), **values}
        was_waiting = bool(self._waiting)
        self._waiting += json.dumps(record, ensure_ascii=False, allow_nan=False).encode() + b"\n"
        if (error := self._append()) and not was_waiting:
            self._warn(f"cannot write {self._path}: {error}; training goes on to the next save")
        self._tell(lambda logger: logger.log(record["step"], split, record["time"], values))
        if self._mirror:
            self._mirror.push_soon()

    def cut_back(self, step: int) -> float:
        """Remove the records after ``step``, here and in the loggers; return the seconds of work that are lost.

        They are infinite if no record is left: then all the work is lost.
        """
        lines = reading.read_bytes(self._path).splitlines(keepends=True)
        kept = [line for line in lines if (record := _parse(line)) and record["step"] <= step]
        before, after = (_last_time(part) for part in (lines, kept))
        self._file.close()
        self._waiting = b""
        files.write_bytes(self._path, b"".join(kept))
        self._open()
        records = self.records()
        self._tell(lambda logger: logger.cut_back(records))
        return max(0.0, before - after) if after or not before else math.inf

    def records(self) -> list[Record]:
        """Return all records in the order in which they were written."""
        return read_records(self._path)

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
                self._warn(f"the logger {name} failed and is switched off: {type(error).__name__}: {error}")


def read_records(path: str | os.PathLike[str]) -> list[Record]:
    """Return the records of a ``metrics.jsonl``, without an incomplete line."""
    records = map(_parse, reading.read_bytes(files.as_path(path)).splitlines())
    return [record for record in records if record]


def _parse(line: bytes) -> Record | None:
    record = reading.parsed_object(line)
    if record is None or not isinstance(record.get("split"), str) or not all(map(_is_value, record.values())):
        return None
    return record if isinstance(record.get("step"), int) and is_number(record.get("time")) else None


def _is_value(value: object) -> bool:
    """Return whether ``value`` is one that ``RunLog`` writes."""
    return value is None or isinstance(value, (str, bool)) or is_number(value)


def _last_time(lines: Iterable[bytes]) -> float:
    return max((record["time"] for record in map(_parse, lines) if record), default=0.0)


def _plain(value: Any) -> Any:
    """Return a value as plain JSON: numpy numbers become Python numbers, and NaN and infinity become None."""
    if value is None or isinstance(value, (str, bool)):
        return value
    number = float(value)
    if not math.isfinite(number):
        return None
    return int(value) if number.is_integer() and hasattr(value, "__index__") else number
