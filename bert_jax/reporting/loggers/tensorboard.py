"""Writes TensorBoard events to ``workdir/events``.

``train`` and ``eval`` are sibling folders, so one chart shows both.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_jax.reporting.loggers.base import Record, RunFacts, metrics_of, numbers
from bert_jax.storage import files

FOLDER = "events"


class Logger:
    """Writes the records as TensorBoard events. After a cut, it rewrites all events with their original times.

    It uses the plain event writer below ``SummaryWriter``, because ``SummaryWriter`` queues events for another thread
    and offers no way to wait until they are written.
    """

    def __init__(self) -> None:
        from tensorboardX.event_file_writer import EventsWriter

        self._make_writer = EventsWriter
        self._writers: dict[str, Any] = {}
        self._folder = Path(FOLDER)

    def start(self, run: RunFacts) -> None:
        self._folder = Path(files.as_path(run.workdir)) / FOLDER

    def log(self, step: int, split: str, time: float, metrics: Mapping[str, Any]) -> None:
        self._write(step, split, time, metrics)
        self._writers[split].flush()

    def cut_back(self, records: Sequence[Record]) -> None:
        self.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        for record in records:
            self._write(record["step"], record["split"], record["time"], metrics_of(record))
        for writer in self._writers.values():
            writer.flush()

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def _write(self, step: int, split: str, time: float, metrics: Mapping[str, Any]) -> None:
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        if split not in self._writers:
            (self._folder / split).mkdir(parents=True, exist_ok=True)
            self._writers[split] = self._make_writer(str(self._folder / split / "events"))
        values = [Summary.Value(tag=name, simple_value=value) for name, value in numbers(metrics).items()]
        self._writers[split].write_event(Event(wall_time=time, step=step, summary=Summary(value=values)))
