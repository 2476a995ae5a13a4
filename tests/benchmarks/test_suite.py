"""The benchmark suite runs from end to end, and says what it leaves out."""

from __future__ import annotations

import importlib.util
import json
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.benchmarks.suite import __main__ as suite
from tests.benchmarks.suite import results
from tests.benchmarks.suite.figures import FIGURES, OURS, SIDES, SMALL, TINY, Side
from tests.benchmarks.suite.results import FigureResult, SideResult
from tests.benchmarks.suite.worker import SideError, Worker


def figure() -> FigureResult:
    """A figure whose peer took twice as long, and another that was left out."""
    facts = {"flops": 6e12, "matmul": {"float32": 4e12}}
    ours = SideResult("ours, float32", OURS, "float32", [2.0, 3.0, 4.0], facts)
    peer = SideResult("PyTorch, float32", "PyTorch", "float32", [6.0], {"matmul": {"float32": 3e12}})
    absent = SideResult("Hugging Face, float32", "Hugging Face", "float32", left_out="transformers is missing")
    return FigureResult(SMALL, True, [ours, peer, absent])


def test_the_table_has_medians_and_spreads_and_the_picture_every_side() -> None:
    found, machine = figure(), {"device": "cpu", "cores": "2 cores of <x>"}
    assert found.row(found.sides[0]) == ["ours, float32", "3,000.00", "2,000.00 to 4,000.00", "10.7", "50%", ""]
    assert found.row(found.sides[1])[-1] == "2.00 x"
    text = results.table(machine, [found])
    assert "Hugging Face, float32 is left out: transformers is missing" in text
    record = json.loads(json.dumps(results.as_json(machine, [found])))
    assert [side.get("median_seconds") for side in record["figures"][0]["sides"]] == [3.0, 6.0, None]
    drawn = ElementTree.fromstring(results.picture(machine, [found]))
    assert len(drawn.findall("{*}rect")) == 3, "the ground, and a bar for each side that was measured"


def test_a_side_that_fails_or_takes_too_long_is_one_line() -> None:
    wrong = Worker(TINY[0], Side("nobody", "float32"), "cpu", 0.01)  # type: ignore[arg-type]
    try:
        with pytest.raises(SideError, match="no time left"):
            wrong.answer(time.monotonic())
    finally:
        wrong.end()


def test_bad_flags_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert suite.main(["--turns=0"]) == 2
    assert capsys.readouterr().err == "error: --turns, --minutes and --turn_seconds are numbers above 0\n"


def test_a_device_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert suite.main(["--device=tpu"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert "ours, bfloat16 is left out: jax finds no tpu (cpu)" in lines
    assert lines[-1].startswith("error: nothing of ours can be measured for --device=tpu")


@pytest.mark.heavy
@pytest.mark.parametrize("device", sorted(FIGURES))
def test_the_whole_suite_in_small(device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert suite.main([f"--device={device}", "--tiny", "--turns=2", f"--output={tmp_path}"]) == 0
    record: dict[str, Any] = json.loads((tmp_path / "results.json").read_text())
    said = capsys.readouterr().err
    assert [entry["figure"]["name"] for entry in record["figures"]] == [of.name for of in TINY]
    for entry in record["figures"]:
        for side, of in zip(entry["sides"], SIDES[device], strict=True):
            there = all(importlib.util.find_spec(name) for name in of.packages)
            assert len(side["seconds"]) == (2 if there else 0), f"{side['name']}: {side['left_out']}"
            assert there or f"{side['name']} is left out: the package " in said
    assert (tmp_path / "picture.svg").exists()
