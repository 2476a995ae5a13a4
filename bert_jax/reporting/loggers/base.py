"""What a logger is, and the facts about a run that it is told."""

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
    """Who is running. ``run_id`` is the same across restarts; ``workdir`` is a local folder."""

    run_id: str
    name: str
    workdir: str
    config: Mapping[str, Any]


class LoggerProtocol(Protocol):
    """A view of ``metrics.jsonl`` elsewhere. Any method may raise: the run log then switches the logger off.

    The constructor takes nothing and raises ``UserError`` if a package is missing, so that it is known before training.
    """

    def start(self, run: RunFacts) -> None:
        """Open, or open again after a restart under the same ``run_id``."""
        ...

    def log(self, step: int, split: str, time: float, metrics: Mapping[str, Any]) -> None:
        """One record. ``time`` is in unix seconds; a value that is not known is None."""
        ...

    def cut_back(self, records: Sequence[Record]) -> None:
        """The run went back: these records are all that still stands."""
        ...

    def close(self) -> None:
        """Flush and let go."""
        ...


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The metrics that are finite numbers: what a chart can show."""
    return {name: float(value) for name, value in metrics.items() if is_number(value)}


def metrics_of(record: Record) -> Record:
    """A record without its three leading keys."""
    return {name: value for name, value in record.items() if name not in ("step", "split", "time")}


def flatten(config: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """``{"model": {"num_layers": 2}}`` as ``{"model.num_layers": 2}``."""
    leaves: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            leaves.update(flatten(value, f"{where}{key}."))
        else:
            leaves[f"{where}{key}"] = value
    return leaves


def check_loggers(names: Sequence[str]) -> None:
    """Raise ``UserError`` for a name that no file of this package has."""
    for name in names:
        catalogue.find("reporting.loggers", name, having="Logger")


def require(package: str) -> None:
    """Raise ``UserError`` unless ``package``, which is also the name of our extra, is installed."""
    if importlib.util.find_spec(package) is None:
        raise UserError(
            f"the logger {package!r} needs the package {package}, which is not installed; "
            f"pip install {package}, or take {package!r} out of the config's loggers"
        )
