"""A grid that is cut goes on, and its results come from the very runs that are asked for."""

import dataclasses
import json
import math
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import bert_jax
from bert_jax.errors import RepeatingError, UserError
from bert_jax.experiments import grid
from bert_jax.experiments.grid import CELL, RESULTS, Grid
from bert_jax.experiments.nouns import Cell

CELLS = [Cell(f"rate-{i}", {"rate": i / 10}) for i in range(3)]


class Runs:
    """Counts what is run and leaves a file behind, as training does."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, cell: Cell, workdir: str) -> dict[str, float]:
        self.names.append(cell.name)
        (Path(workdir) / "model").write_text("weights")
        return {"loss": cell.overrides["rate"] * 2}


def test_every_cell_is_run_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = Runs()
    expected = {"rate-0": {"loss": 0.0}, "rate-1": {"loss": 0.2}, "rate-2": {"loss": 0.4}}
    assert Grid(CELLS, str(tmp_path)).run(runs) == expected
    assert "\n[2/3] rate-1: loss 0.2; about " in capsys.readouterr().out
    assert Grid(CELLS, str(tmp_path)).run(runs) == expected
    assert runs.names == ["rate-0", "rate-1", "rate-2"]
    assert capsys.readouterr().out.endswith("\n[3/3] rate-2: already done; loss 0.4\n")


KILLED = """
import os, signal, sys
from bert_jax.experiments.grid import Grid
from bert_jax.experiments.nouns import Cell

def run(cell, workdir):
    with open(os.path.join(workdir, "model"), "w") as file:
        file.write("half")
    if cell.name == "rate-1":
        os.kill(os.getpid(), signal.SIGKILL)
    return {"loss": cell.overrides["rate"] * 2}

Grid([Cell(f"rate-{i}", {"rate": i / 10}) for i in range(3)], sys.argv[1]).run(run)
"""


def test_a_killed_grid_goes_on_where_it_stood(tmp_path: Path) -> None:
    root = Path(bert_jax.__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], cwd=root, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    seen: dict[str, str] = {}

    def run(cell: Cell, workdir: str) -> dict[str, float]:
        model = Path(workdir) / "model"
        seen[cell.name] = model.read_text() if model.exists() else "nothing"
        return {"loss": cell.overrides["rate"] * 2}

    assert Grid(CELLS, str(tmp_path)).run(run)["rate-2"] == {"loss": 0.4}
    assert seen == {"rate-1": "half", "rate-2": "nothing"}  # the finished one is left alone, the cut one resumed


@pytest.mark.parametrize("damage", ["", '{"identity"', "[]", "changed"])
def test_damaged_results_are_made_again_in_place(tmp_path: Path, damage: str) -> None:
    Grid(CELLS, str(tmp_path)).run(Runs())
    results = tmp_path / "rate-1" / RESULTS
    text = results.read_text()
    results.write_text(text.replace("0.2", "0.1") if damage == "changed" else damage)
    runs = Runs()
    assert Grid(CELLS, str(tmp_path)).run(runs)["rate-1"] == {"loss": 0.2}
    assert runs.names == ["rate-1"]
    mended, before = json.loads(results.read_text()), json.loads(text)
    assert mended.pop("seconds") >= 0 <= before.pop("seconds")
    assert mended == before
    assert sorted(path.name for path in tmp_path.iterdir()) == [cell.name for cell in CELLS]


@pytest.mark.parametrize("name", [CELL, RESULTS])
def test_odd_entries_of_a_file_of_a_cell(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The cell is done, is run again, or is refused in one line; never with another result."""
    Grid(CELLS, str(tmp_path)).run(Runs())
    path, ended = tmp_path / "rate-1" / name, dict[str, str]()
    text = path.read_text()
    for key in json.loads(text):
        for odd in (None, "x", "", [], {}, [None], {"x": None}, -1, 0, True, math.nan, math.inf, 10**400, "left out"):
            content = json.loads(text) | {key: odd}
            path.write_text(json.dumps({k: v for k, v in content.items() if v != "left out"}))
            try:
                assert Grid(CELLS, str(tmp_path)).run(Runs())["rate-1"] == {"loss": 0.2}
                ended[f"{key}={odd}"[:40]] = "run"
            except UserError:
                ended[f"{key}={odd}"[:40]] = "refused"
            Grid(CELLS, str(tmp_path / "other")).run(Runs())
            (tmp_path / "rate-1" / CELL).write_bytes((tmp_path / "other" / "rate-1" / CELL).read_bytes())
            (tmp_path / "rate-1" / RESULTS).write_bytes((tmp_path / "other" / "rate-1" / RESULTS).read_bytes())
    assert ended["format=None"] == "refused"
    assert ended.get("seconds=None", "run") == ended["overrides=None"] == "run"
    assert "inf" not in capsys.readouterr().out


def test_another_run_is_refused(tmp_path: Path) -> None:
    Grid(CELLS, str(tmp_path)).run(Runs())
    changed, before = [CELLS[0], Cell("rate-1", {"rate": 1.0})], sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError, match=r"rate-1 \(rate: 0.1 -> 1.0\)\. Put back .* or move these") as refusal:
        Grid(changed, str(tmp_path))
    assert "\n" not in str(refusal.value)
    assert sorted(tmp_path.rglob("*")) == before
    (tmp_path / "rate-1").rename(tmp_path / "elsewhere")
    runs = Runs()
    assert Grid(changed, str(tmp_path)).run(runs)["rate-1"] == {"loss": 2.0}
    assert runs.names == ["rate-1"]


def test_what_all_cells_share_counts_and_is_named(tmp_path: Path) -> None:
    Grid([dataclasses.replace(cell, common={"eval_rows": 8}) for cell in CELLS], str(tmp_path)).run(Runs())
    cells = [dataclasses.replace(cell, common={"eval_rows": 16}) for cell in CELLS]
    with pytest.raises(UserError, match=r"rate-0, rate-1, rate-2 \(eval_rows: 8 -> 16\)"):
        Grid(cells, str(tmp_path)).run(Runs())


def test_a_run_that_has_saved_nothing_is_not_defended(tmp_path: Path) -> None:
    def fails(cell: Cell, workdir: str) -> dict[str, float]:
        raise UserError("wrong code")

    with pytest.raises(UserError, match="wrong code"):
        Grid(CELLS, str(tmp_path)).run(fails)
    changed = [Cell("rate-0", {"rate": 3.0})]
    assert Grid(changed, str(tmp_path)).run(Runs()) == {"rate-0": {"loss": 6.0}}
    (tmp_path / "rate-1").mkdir()
    (tmp_path / "rate-1" / "thesis.tex").touch()
    with pytest.raises(UserError, match=r"rate-1 \(it does not say which run it is\)"):
        Grid(CELLS[1:], str(tmp_path)).run(Runs())


def test_the_time_left_is_by_the_ended_runs_of_the_same_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 60.0, 60.0, 180.0, 180.0, 270.0, 270.0, 280.0, 280.0, 300.0])
    monkeypatch.setattr(grid, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    cells = [dataclasses.replace(cell, work="pretraining") for cell in CELLS]
    cells += [Cell(f"tuned-{i}", {"rate": 1.0}, work="fine-tuning") for i in range(2)]
    Grid(cells[:3], str(tmp_path)).run(Runs())
    ended = [line for line in capsys.readouterr().out.splitlines() if ": loss" in line]
    assert [line.partition("; ")[2] for line in ended] == ["about 2 m 00 s left", "about 1 m 30 s left", ""]
    Grid(cells, str(tmp_path)).run(Runs())
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "5 runs: 3 of pretraining, then 2 of fine-tuning; 3 of them done already", "no time of fine-tuning"
    ended = [line for line in lines if ": loss" in line]
    assert ended == ["[4/5] tuned-0: loss 2; about 10 s left", "[5/5] tuned-1: loss 2"]


def test_what_was_interrupted_tells_nothing_of_speed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "saved_steps", lambda place: [20] if place.endswith("rate-0") else [])
    Grid(CELLS, str(tmp_path)).run(Runs())
    seconds = [json.loads((tmp_path / cell.name / RESULTS).read_text())["seconds"] for cell in CELLS]
    assert seconds[0] == 0 < min(seconds[1:])


def test_errors_name_the_cell_and_leave_it_unfinished(tmp_path: Path) -> None:
    def run(cell: Cell, workdir: str) -> dict[str, float]:
        del workdir
        if cell.name == "rate-1":
            raise RepeatingError("the loss is not finite")
        return {"loss": 1.0}

    with pytest.raises(RepeatingError, match="^rate-1: the loss is not finite"):
        Grid(CELLS, str(tmp_path)).run(run)
    assert (tmp_path / "rate-0" / RESULTS).exists()
    assert not (tmp_path / "rate-1" / RESULTS).exists()
    with pytest.raises(UserError, match="rate-1: loss is not finite; lower"):
        Grid(CELLS, str(tmp_path)).run(lambda *_: {"loss": float("nan")})


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("a/b", "ok", "../c"), "'a/b', '../c' cannot name a folder"),
        (("one", "One"), "one: named more than once"),
    ],
)
def test_names_are_checked_before_anything_runs(tmp_path: Path, names: tuple[str, ...], message: str) -> None:
    runs = Runs()
    with pytest.raises(UserError, match=message):
        Grid([Cell(name, {}) for name in names], str(tmp_path)).run(runs)
    assert runs.names == []
