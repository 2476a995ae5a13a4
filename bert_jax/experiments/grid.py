"""Runs many experiments, each in its own folder. After an interruption, the same call resumes the work."""

from __future__ import annotations

import hashlib
import json
import math
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from etils import epath

from bert_jax.checkpoints.restoring import saved_steps
from bert_jax.configuration import differences
from bert_jax.errors import UserError, few
from bert_jax.experiments.nouns import Cell, Metrics
from bert_jax.program import duration
from bert_jax.reporting.formats import is_number
from bert_jax.storage import files, reading
from bert_jax.workdir import file_formats

CELL, RESULTS = "cell.json", "finished.json"  # names the run of a folder, written first; its results, written last
_MOST_NAMED, _MOST_METRICS = 4, 4  # names of cells in one error; metrics in the line of a cell


class Grid:
    """The runs of an experiment, each in a folder that holds this run, finished or not, or no run."""

    def __init__(self, cells: Sequence[Cell], workdir: str):
        """Look at the folders of the cells.

        Raises:
          UserError: a folder holds another run, with results or saved steps, or a name cannot be the name of a folder.
        """
        _check_names(cells)
        self._cells, self._root = cells, files.as_path(workdir)
        if others := [cell for cell in cells if _holds_another(self._root / cell.name, cell)]:
            changed = "; ".join(_changed(self._root / others[0].name, others[0]))
            raise UserError(
                f"{self._root} holds other runs than are asked for: {few([cell.name for cell in others], _MOST_NAMED)} "
                f"({changed}). Put back what changed, give another --workdir, or move these folders away"
            )

    def run(self, train: Callable[[Cell, str], Mapping[str, float]]) -> dict[str, Metrics]:
        """Run the cells that are not done yet; return the metrics of every cell by name.

        A cell is done if its folder has results for the same ``overrides`` and the same ``common``. A cell that was
        interrupted, or whose results are damaged, is resumed in its folder.

        Args:
          train: a function (cell, existing folder) -> metrics, all finite. It resumes a run that it finds there.

        Raises:
          UserError: any error of a run, preceded by the cell's name.
        """
        cells, root, every = self._cells, self._root, dict[str, Metrics]()
        done = {cell.name: metrics for cell in cells if (metrics := _results(root / cell.name, cell)) is not None}
        seconds = {name: _seconds(root / name) for name in done}
        works = ", then ".join(f"{number} of {work}" for work, number in Counter(cell.work for cell in cells).items())
        print(f"{len(cells)} runs: {works}; {len(done)} of them done already{_left(cells, seconds)}", flush=True)
        for number, cell in enumerate(cells, start=1):
            place, where = root / cell.name, f"[{number}/{len(cells)}] {cell.name}"
            if cell.name in done:
                metrics = every[cell.name] = done[cell.name]
                print(f"{where}: already done; {_describe(metrics)}", flush=True)
                continue
            print(f"{where}: {place}", flush=True)
            metrics = every[cell.name] = _run(cell, place, train)
            seconds[cell.name] = _seconds(place)
            print(f"{where}: {_describe(metrics)}{_left(cells, seconds)}", flush=True)
        return every


def _run(cell: Cell, place: epath.Path, train: Callable[[Cell, str], Mapping[str, float]]) -> Metrics:
    """Run a cell in its folder, in which its results and its seconds are written last; return its metrics."""
    place.mkdir(parents=True, exist_ok=True)
    files.write_text(place / CELL, json.dumps(_whose(cell) | {"common": _with_names(cell.common)}) + "\n")
    (place / RESULTS).unlink(missing_ok=True)
    began, resumes = time.monotonic(), bool(saved_steps(str(place)))
    try:
        metrics = dict(train(cell, str(place)))
    except UserError as error:
        raise type(error)(f"{cell.name}: {error}") from error
    if broken := [key for key, value in metrics.items() if not math.isfinite(value)]:
        raise UserError(f"{cell.name}: {', '.join(broken)} is not finite; lower the run's learning rate")
    seconds = 0.0 if resumes else max(time.monotonic() - began, 1e-3)  # 0: not known
    record = _whose(cell) | {"metrics": metrics, "sha256": _digest(metrics), "seconds": seconds}
    files.write_text(place / RESULTS, json.dumps(record, indent=2) + "\n")
    return metrics


def _check_names(cells: Sequence[Cell]) -> None:
    wrong = [cell.name for cell in cells if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.=+@-]*", cell.name)]
    if wrong:
        raise UserError(f"{', '.join(map(repr, wrong))} cannot name a folder; use letters, digits and _ . = + @ -")
    for cell in cells:
        files.check_name(cell.name, "a run of the grid")
    folded = [cell.name.lower() for cell in cells]  # some file systems ignore case
    twice = sorted({name for name in folded if folded.count(name) > 1})
    if twice:
        raise UserError(f"{', '.join(twice)}: named more than once; give every run a name of its own")


def _identity(cell: Cell) -> str:
    return _digest([cell.name, dict(cell.overrides), cell.common])


def _whose(cell: Cell) -> dict[str, Any]:
    """Return the entries that both files of a cell have."""
    return {file_formats.KEY: file_formats.GRID.number, "identity": _identity(cell), "overrides": dict(cell.overrides)}


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _results(place: epath.Path, cell: Cell) -> Metrics | None:
    """Return the metrics of a finished cell; None if there are none, or they are damaged or belong to another cell."""
    record = _read(place / RESULTS)
    metrics = record.get("metrics")
    sound = record.get("identity") == _identity(cell) and record.get("sha256") == _digest(metrics)
    return metrics if sound else None


def _seconds(place: epath.Path) -> float:
    """Return the seconds that an ended run took; 0 if they are not known, as for a run that was interrupted."""
    seconds = _read(place / RESULTS).get("seconds")
    return float(seconds) if is_number(seconds) and seconds > 0 else 0.0


def _holds_another(place: epath.Path, cell: Cell) -> bool:
    """Return whether a folder holds more than this cell, or a run of a grid that has saved nothing yet."""
    if not place.exists() or not any(place.iterdir()):
        return False
    if _read(place / CELL).get("identity") == _identity(cell) or _results(place, cell) is not None:
        return False
    return not (place / CELL).exists() or (place / RESULTS).exists() or bool(saved_steps(str(place)))


def _changed(place: epath.Path, cell: Cell) -> list[str]:
    """Return the differences between the run that a folder holds and the cell, as ``key: old -> new``."""
    record = _read(place / RESULTS) | _read(place / CELL)
    if "identity" not in record:
        return ["it does not say which run it is"]
    wanted = json.loads(json.dumps({"overrides": dict(cell.overrides), "common": _with_names(cell.common)}))
    changes = [one for key in wanted if key in record for one in differences(record[key], wanted[key], "")]
    named = [re.sub(r"^\.(origin\.)?(recipe|config)\.", "config.", one).removeprefix(".") for one in changes]
    return list(dict.fromkeys(named)) or ["other held-out rows or other inputs"]


def _with_names(common: Any) -> Any:
    """Return ``common`` with the names of its entries if it is a named tuple."""
    return common._asdict() if hasattr(common, "_asdict") else common


def _read(path: epath.Path) -> dict[str, Any]:
    """Return the content of a cell's file; {} if it is missing or damaged.

    Raises ``UserError`` if another version wrote it.
    """
    content = reading.read_object(path) or {}
    if content:
        file_formats.GRID.check(content, path, "give another --workdir")
    return content


def _describe(metrics: Metrics) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in list(metrics.items())[:_MOST_METRICS])


def _left(cells: Sequence[Cell], seconds: Mapping[str, float]) -> str:
    """Return the end of a line: the time that the cells without ``seconds`` will take; "" if it is not known.

    A cell is taken to need the mean time of the ended cells of its kind of work.

    Args:
      seconds: name of an ended cell -> its time; 0 if the time is not known.
    """
    left = [cell.work for cell in cells if cell.name not in seconds]
    known = {work: [seconds[one.name] for one in cells if one.work == work and seconds.get(one.name)] for work in left}
    if not left or not all(known.values()):
        return ""
    return f"; about {duration(sum(statistics.fmean(known[work]) for work in left))} left"
