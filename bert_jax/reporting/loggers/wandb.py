"""Logs to Weights & Biases (extra ``wandb``).

Environment variables of wandb, such as WANDB_PROJECT, choose project, entity and mode.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.errors import optional_library
from bert_jax.reporting.loggers.base import Record, RunFacts, numbers


class Logger:
    """A run in Weights & Biases, resumed under the same id.

    The service cannot forget a step and refuses a second value for a step. That does no harm: a resumed run computes
    the same figures again, so a refused value is there already.
    """

    def __init__(self) -> None:
        self._wandb = optional_library("wandb", "the logger 'wandb'")
        self._run: Any = None

    def start(self, run: RunFacts) -> None:
        self._run = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", "bert_jax"),
            id=run.run_id,
            name=run.name,
            dir=run.workdir,
            config=dict(run.config),
            resume="allow",
        )

    def log(self, step: int, split: str, time: float, metrics: Mapping[str, Any]) -> None:
        values = {f"{split}/{name}": value for name, value in numbers(metrics).items()}
        self._run.log({**values, "time": time}, step=step)

    def cut_back(self, records: Sequence[Record]) -> None:
        pass

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()
