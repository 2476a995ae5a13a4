"""Many runs of one kind, each in a folder of its own; a grid that was cut goes on where it stood."""

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
from bert_jax.storage import files

CELL, RESULTS = "cell.json", "finished.json"  # what a folder is for, written first; what came out, written last
Metrics = dict[str, float]
Note = Callable[[str], None]


def say(line: str) -> None:
    """Print at once, also where the output is a file."""
    print(line, flush=True)


@dataclasses.dataclass(frozen=True)
class Cell:
    """One run: ``name`` is its folder, ``overrides`` what makes it another run than its neighbours, as plain data."""

    name: str
    overrides: Mapping[str, Any]


def run_cells(
    cells: Sequence[Cell],
    run: Callable[[Cell, str], Mapping[str, float]],
    workdir: str,
    common: Any = None,
    note: Note = say,
) -> dict[str, Metrics]:
    """Metrics of every cell by its name.

    A cell whose results are there, of the same overrides and the same ``common``, is not run again. One that was cut,
    or whose results are damaged, is run in the folder where it stood. The folder of another run with that name is
    renamed to ``<name>.old-1`` (then ``-2``, ...), and nothing in it is lost.

    Args:
      run: given a cell and its folder, which exists; it resumes what it finds there. Returns finite numbers.
      common: what all cells share, such as their recipe, as plain data: part of what makes results the same.

    Raises:
      UserError: names that are not fit for folders, or whatever a run raises, with the cell's name.
    """
    _check_names(cells)
    root, found, start, ran = files.as_path(workdir), dict[str, Metrics](), time.monotonic(), 0
    for number, cell in enumerate(cells, start=1):
        place, identity = root / cell.name, _identity(cell, common)
        metrics = _results(place, identity)
        where = f"[{number}/{len(cells)}] {cell.name}"
        if metrics is not None:
            note(f"{where}: done before; {_shown(metrics)}")
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
    folded = [cell.name.lower() for cell in cells]  # some file systems do not tell small letters from capitals
    twice = sorted({name for name in folded if folded.count(name) > 1})
    if twice:
        raise UserError(f"{', '.join(twice)}: named more than once; give every run a name of its own")


def _identity(cell: Cell, common: Any) -> str:
    return _digest([cell.name, dict(cell.overrides), common])


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _results(place: epath.Path, identity: str) -> Metrics | None:
    """The metrics of a finished cell; None if there are none, of another cell, or damaged."""
    record = _read(place / RESULTS)
    metrics = record.get("metrics")
    sound = record.get("identity") == identity and record.get("sha256") == _digest(metrics)
    return metrics if sound else None


def _make_room(place: epath.Path, identity: str, note: Note) -> None:
    """An empty folder for the cell, or the one in which it was cut."""
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
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _check_metrics(name: str, metrics: Metrics) -> None:
    broken = [key for key, value in metrics.items() if not math.isfinite(value)]
    if broken:
        raise UserError(f"{name}: {', '.join(broken)} is not finite; the run diverged: lower its learning rate")


def _shown(metrics: Metrics, most: int = 4) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in list(metrics.items())[:most])
