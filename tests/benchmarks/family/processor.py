"""A logger that counts the processor seconds of a run: of all threads, so other jobs beside it change them little."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_jax.reporting.loggers.base import Record, RunFacts

FILE = "processor.json"


class Logger:
    """Writes the median, over the windows between two lines of the log, of the processor seconds of a step."""

    def __init__(self) -> None:
        self._last: tuple[int, float] | None = None  # the step of the last line, and the processor seconds until then
        self._seconds: list[float] = []

    def start(self, run: RunFacts) -> None:
        self._path = Path(run.workdir) / FILE

    def log(self, step: int, split: str, time_: float, metrics: Mapping[str, Any]) -> None:
        del time_, metrics
        if split != "train":
            self._last = None  # an evaluation is no step
            return
        now = time.process_time()
        if self._last and step > self._last[0]:
            self._seconds.append((now - self._last[1]) / (step - self._last[0]))
            self._path.write_text(json.dumps(statistics.median(self._seconds)), encoding="utf-8")
        self._last = step, now

    def cut_back(self, records: Sequence[Record]) -> None:
        """Keep all: a step costs the same when it is repeated."""

    def close(self) -> None:
        """Nothing is buffered."""
