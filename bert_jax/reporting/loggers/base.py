"""The interface of loggers, and the facts about a run that a logger receives."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from bert_jax.parts import catalogue
from bert_jax.reporting.formats import is_number

Record = dict[str, Any]  # one line of metrics.jsonl: step, split, time and metrics


@dataclasses.dataclass(frozen=True)
class RunFacts:
    """The facts about a run that a logger receives. ``run_id`` survives restarts; ``workdir`` is a local folder."""

    run_id: str
    name: str
    workdir: str
    config: Mapping[str, Any]


class LoggerProtocol(Protocol):
    """The interface of a logger, which shows the records of ``metrics.jsonl`` in another tool.

    If a method raises, the run log switches the logger off. The constructor takes no arguments; it raises ``UserError``
    if a package is missing, so that the user learns of it before training.
    """

    def start(self, run: RunFacts) -> None:
        """Open the run in the other tool; after a restart, open the run with the same ``run_id`` again."""
        ...

    def log(self, step: int, split: str, time: float, metrics: Mapping[str, Any]) -> None:
        """Log one record. ``time`` is in Unix seconds. A metric whose value is not known is None."""
        ...

    def cut_back(self, records: Sequence[Record]) -> None:
        """Withdraw all records except ``records``, which are still valid."""
        ...

    def close(self) -> None:
        """Send what is buffered, and close the run."""
        ...


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics that are finite numbers, which alone a chart can show."""
    return {name: float(value) for name, value in metrics.items() if is_number(value)}


def metrics_of(record: Record) -> Record:
    """Return the metrics of a record, without its step, split and time."""
    return {name: value for name, value in record.items() if name not in ("step", "split", "time")}


def flatten(config: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Return a nested dict as a flat one: ``{"model": {"num_layers": 2}}`` becomes ``{"model.num_layers": 2}``."""
    leaves: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            leaves.update(flatten(value, f"{where}{key}."))
        else:
            leaves[f"{where}{key}"] = value
    return leaves


def check_loggers(names: Sequence[str]) -> None:
    """Raise ``UserError`` unless each of ``names`` is a logger: a file of this package, or a user's file."""
    for name in names:
        catalogue.find("reporting.loggers", name, having="Logger", where="config.training.loggers")
