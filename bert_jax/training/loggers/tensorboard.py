"""TensorBoard events in ``workdir/events``: ``train`` and ``eval`` side by side, so both draw in one chart."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_jax.training.loggers.base import Record, RunFacts, metrics_of, numbers

FOLDER = "events"


class Logger:
    """Events are a view of ``metrics.jsonl``: after a cut they are written again from the records, wall times kept."""

    def __init__(self) -> None:
        import tensorboardX

        self._make_writer = tensorboardX.SummaryWriter
        self._writers: dict[str, Any] = {}
        self._folder = Path(FOLDER)

    def start(self, run: RunFacts) -> None:
        self._folder = Path(run.workdir) / FOLDER

    def log(self, step: int, split: str, time: float, metrics: Mapping[str, Any]) -> None:
        if split not in self._writers:
            self._writers[split] = self._make_writer(str(self._folder / split), flush_secs=20)
        for name, value in numbers(metrics).items():
            self._writers[split].add_scalar(name, value, global_step=step, walltime=time)

    def cut_back(self, records: Sequence[Record]) -> None:
        self.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        for record in records:
            self.log(record["step"], record["split"], record["time"], metrics_of(record))
        for writer in self._writers.values():
            writer.flush()

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()
