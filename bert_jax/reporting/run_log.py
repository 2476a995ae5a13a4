"""Writes ``metrics.jsonl``, the one record of a run's figures. Every logger, chart and report is made from it."""

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

    A line is written in one piece, so a kill leaves at most one torn line, at the end, which the next start drops. An
    object store cannot append: for one the file is kept in the local cache folder and uploaded whole (by ``flush``, and
    every 30 s). Only process 0 of a job keeps a log.

    Training never stops for a logger or an upload: a failure is passed to ``warn`` once. Only a store that does not
    answer a ``flush`` is an error. A line that the disk does not take waits for the next line, at most until a
    ``flush``.
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
        self._waiting = b""  # lines that the disk has not taken yet
        self._open()

    def start(self, run: RunFacts) -> None:
        """Start the loggers; they write into the log's local folder."""
        local = replace(run, workdir=str(self._folder))
        self._tell(lambda logger: logger.start(local))

    def write(self, step: int, split: str, metrics: Mapping[str, Any]) -> None:
        """Append one record. Values are numbers, None, or text (such as the phase); NaN and infinity become null."""
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
        """Keep only records up to ``step``, here and in the loggers; return the seconds of work that this loses."""
        lines = reading.read_bytes(self._path).splitlines(keepends=True)
        kept = [line for line in lines if (record := _parse(line)) and record["step"] <= step]
        before, after = (_last_time(part) for part in (lines, kept))
        self._file.close()
        self._waiting = b""
        files.write_bytes(self._path, b"".join(kept))
        self._open()
        records = self.records()
        self._tell(lambda logger: logger.cut_back(records))
        return max(0.0, before - after) if before and after else 0.0

    def records(self) -> list[Record]:
        """Return all records, in the order written."""
        return read_records(self._path)

    def evaluations(self) -> list[Record]:
        """Return the records of the held-out rows."""
        return [record for record in self.records() if record["split"] == "eval"]

    def flush(self) -> None:
        """Write and upload what is not there yet. Call it before a save, so that no checkpoint is ahead of the log.

        Raises:
          UserError: the disk does not take it. It is a ``PassingError`` if a store does not answer.
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
        self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115 - open as long as the run
        self._size = content.rfind(b"\n") + 1
        self._file.truncate(self._size)

    def _append(self) -> OSError | None:
        """Write the lines that wait, all or none; return the error that prevents it."""
        left = self._waiting
        try:
            while left:  # a disk that fills up may take only a part
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
            except Exception as error:  # a logger is foreign code and network: it may raise anything
                self._loggers.remove(logger)
                name = type(logger).__module__.rpartition(".")[2]
                self._warn(f"the logger {name} failed and is switched off: {type(error).__name__}: {error}")


def read_records(path: str | os.PathLike[str]) -> list[Record]:
    """Return the records of a ``metrics.jsonl``, without a torn line."""
    records = map(_parse, reading.read_bytes(files.as_path(path)).splitlines())
    return [record for record in records if record]


def _parse(line: bytes) -> Record | None:
    record = reading.parsed_object(line)
    if record is None or not isinstance(record.get("split"), str) or not all(map(_is_value, record.values())):
        return None
    return record if isinstance(record.get("step"), int) and is_number(record.get("time")) else None


def _is_value(value: object) -> bool:
    """Return whether ``RunLog`` can have written ``value``; an older version may have written NaN."""
    return value is None or isinstance(value, (str, bool, float)) or is_number(value)


def _last_time(lines: Iterable[bytes]) -> float:
    return max((record["time"] for record in map(_parse, lines) if record), default=0.0)


def _plain(value: Any) -> Any:
    """Return a JSON value: numbers of numpy become Python's, and None stands for what is not finite."""
    if value is None or isinstance(value, (str, bool)):
        return value
    number = float(value)
    if not math.isfinite(number):
        return None
    return int(value) if number.is_integer() and hasattr(value, "__index__") else number
