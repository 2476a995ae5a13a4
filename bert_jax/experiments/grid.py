"""Runs many experiments of one kind, each in its own folder. After an interruption, the same call resumes the work."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from etils import epath

from bert_jax.errors import UserError
from bert_jax.program import duration
from bert_jax.storage import files, reading

CELL, RESULTS = "cell.json", "finished.json"  # written first, with the run's identity; written last, with its results
Metrics = dict[str, float]
Note = Callable[[str], None]


def say(line: str) -> None:
    """Print a line and flush it at once, even if the output goes to a file."""
    print(line, flush=True)


@dataclasses.dataclass(frozen=True)
class Cell:
    """One run of a grid.

    ``name`` is the name of its folder; ``overrides`` (plain data) tells it apart from other runs.
    """

    name: str
    overrides: Mapping[str, Any]


def run_cells(
    cells: Sequence[Cell],
    run: Callable[[Cell, str], Mapping[str, float]],
    workdir: str,
    common: Any = None,
    note: Note = say,
) -> dict[str, Metrics]:
    """Run the cells that are not done yet; return the metrics of every cell by name.

    A cell is done if its folder has results for the same ``overrides`` and the same ``common``. A cell that was
    interrupted, or whose results are damaged, is resumed in its folder. If a folder holds another run, it is renamed to
    ``<name>.old-1`` (then ``-2``, ...) and nothing in it is lost.

    Args:
      run: a function (cell, existing folder) -> metrics, all finite. It resumes a run that it finds in the folder.
      common: plain data that all cells share, such as their recipe. If it changes, earlier results do not count.

    Raises:
      UserError: a cell's name cannot be the name of a folder; or any error of a run, preceded by the cell's name.
    """
    _check_names(cells)
    root, found, start, ran = files.as_path(workdir), dict[str, Metrics](), time.monotonic(), 0
    for number, cell in enumerate(cells, start=1):
        place, identity = root / cell.name, _identity(cell, common)
        metrics = _results(place, identity)
        where = f"[{number}/{len(cells)}] {cell.name}"
        if metrics is not None:
            note(f"{where}: already done; {_shown(metrics)}")
        else:
            _make_room(place, identity, note)
            note(f"{where}: {place}")
            try:
                metrics = dict(run(cell, str(place)))
            except UserError as error:
                raise type(error)(f"{cell.name}: {error}") from error
            _check_metrics(cell.name, metrics)
            record = {"identity": identity, "overrides": dict(cell.overrides), "metrics": metrics}
            files.write_text(place / RESULTS, json.dumps(record | {"sha256": _digest(metrics)}, indent=2) + "\n")
            ran += 1
            left = (time.monotonic() - start) / ran * (len(cells) - number)
            note(f"{where}: {_shown(metrics)}" + (f"; about {duration(left)} left" if number < len(cells) else ""))
        found[cell.name] = metrics
    return found


def _check_names(cells: Sequence[Cell]) -> None:
    wrong = [cell.name for cell in cells if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.=+-]*", cell.name)]
    if wrong:
        raise UserError(f"{', '.join(map(repr, wrong))} cannot name a folder; use letters, digits and _ . = + -")
    folded = [cell.name.lower() for cell in cells]  # some file systems ignore case
    twice = sorted({name for name in folded if folded.count(name) > 1})
    if twice:
        raise UserError(f"{', '.join(twice)}: named more than once; give every run a name of its own")


def _identity(cell: Cell, common: Any) -> str:
    return _digest([cell.name, dict(cell.overrides), common])


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _results(place: epath.Path, identity: str) -> Metrics | None:
    """Return the metrics of a finished cell; None if there are none, or they are damaged or belong to another cell."""
    record = _read(place / RESULTS)
    metrics = record.get("metrics")
    sound = record.get("identity") == identity and record.get("sha256") == _digest(metrics)
    return metrics if sound else None


def _make_room(place: epath.Path, identity: str, note: Note) -> None:
    """Prepare a cell's folder: keep it if it holds the cell's interrupted run, else rename it and make a new one."""
    if place.exists() and any(place.iterdir()) and _read(place / CELL).get("identity") != identity:
        number = 1
        while (aside := place.parent / f"{place.name}.old-{number}").exists():
            number += 1
        note(f"{place} holds another run; it is now {aside}")
        place.rename(aside)
    place.mkdir(parents=True, exist_ok=True)
    files.write_text(place / CELL, json.dumps({"identity": identity}) + "\n")
    (place / RESULTS).unlink(missing_ok=True)


def _read(path: epath.Path) -> dict[str, Any]:
    return reading.read_object(path) or {}


def _check_metrics(name: str, metrics: Metrics) -> None:
    broken = [key for key, value in metrics.items() if not math.isfinite(value)]
    if broken:
        raise UserError(f"{name}: {', '.join(broken)} is not finite; the run diverged: lower its learning rate")


def _shown(metrics: Metrics, most: int = 4) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in list(metrics.items())[:most])
