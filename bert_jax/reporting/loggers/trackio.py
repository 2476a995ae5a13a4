"""Logs to Trackio (extra ``trackio``), whose dashboard ``trackio show`` reads files on this machine.

TRACKIO_PROJECT names the project. Trackio's own environment variables choose another place: TRACKIO_DIR a folder,
TRACKIO_SPACE_ID a Space of the Hugging Face Hub, TRACKIO_SERVER_URL a server.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.errors import optional_library
from bert_jax.reporting.loggers.base import Record, RunFacts, numbers


class Logger:
    """A run in Trackio, which is resumed by its name, because Trackio chooses the ids of runs.

    Trackio cannot forget a step. That does no harm: a resumed run computes the same figures again.
    """

    def __init__(self) -> None:
        self._trackio = optional_library("trackio", "the logger 'trackio'")
        self._run: Any = None

    def start(self, run: RunFacts) -> None:
        self._run = self._trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", "bert_jax"),
            name=f"{run.name}-{run.run_id}",
            config=dict(run.config),
            resume="allow",
            embed=False,
        )

    def log(self, step: int, split: str, time: float, metrics: Mapping[str, Any]) -> None:
        self._run.log({f"{split}/{name}": value for name, value in numbers(metrics).items()}, step=step)

    def cut_back(self, records: Sequence[Record]) -> None:
        pass

    def close(self) -> None:
        if self._run is not None:
            self._trackio.finish()
