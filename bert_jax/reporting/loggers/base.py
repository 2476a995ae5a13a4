"""The contract of a logger, and the facts about a run that it receives."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from bert_jax import catalogue
from bert_jax.errors import UserError
from bert_jax.reporting.formats import is_number

Record = dict[str, Any]  # one line of metrics.jsonl: step, split, time, then the metrics


@dataclasses.dataclass(frozen=True)
class RunFacts:
    """The facts about a run. ``run_id`` is the same across restarts; ``workdir`` is a local folder."""

    run_id: str
    name: str
    workdir: str
    config: Mapping[str, Any]


class LoggerProtocol(Protocol):
    """Shows the records of ``metrics.jsonl`` elsewhere. If a method raises, the run log switches the logger off.

    The constructor takes no arguments. It raises ``UserError`` if a package is missing, so that this is known early.
    """

    def start(self, run: RunFacts) -> None:
        """Open the run, or open it again after a restart under the same ``run_id``."""
        ...

    def log(self, step: int, split: str, time: float, metrics: Mapping[str, Any]) -> None:
        """Log one record. ``time`` is in unix seconds; None stands for a value that is not known."""
        ...

    def cut_back(self, records: Sequence[Record]) -> None:
        """Take back steps: only these records are still valid."""
        ...

    def close(self) -> None:
        """Flush and close."""
        ...


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics that are finite numbers, which a chart can show."""
    return {name: float(value) for name, value in metrics.items() if is_number(value)}


def metrics_of(record: Record) -> Record:
    """Return a record without its three leading keys."""
    return {name: value for name, value in record.items() if name not in ("step", "split", "time")}


def flatten(config: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Return ``{"model": {"num_layers": 2}}`` as ``{"model.num_layers": 2}``."""
    leaves: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            leaves.update(flatten(value, f"{where}{key}."))
        else:
            leaves[f"{where}{key}"] = value
    return leaves


def check_loggers(names: Sequence[str]) -> None:
    """Raise ``UserError`` for a name without a file in this package."""
    for name in names:
        catalogue.find("reporting.loggers", name, having="Logger")


def require(package: str) -> None:
    """Raise ``UserError`` unless ``package``, which is also the name of our extra, is installed."""
    if importlib.util.find_spec(package) is None:
        raise UserError(
            f"the logger {package!r} needs the package {package}, which is not installed; "
            f"pip install {package}, or take {package!r} out of the config's loggers"
        )
