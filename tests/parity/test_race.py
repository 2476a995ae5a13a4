"""The race beside transformers' Trainer runs from text to table, in small, on a CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import toy
from tests.benchmarks.race import __main__ as race

pytestmark = pytest.mark.parity


def test_the_whole_race_in_small(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").mkdir()
    for seed in range(40):
        toy.write_text(tmp_path / "text" / f"{seed}.txt", seed=seed)
    given = [f"--text={tmp_path}/text/*.txt", f"--output={tmp_path / 'race'}"]
    assert race.main([*given, "--tiny", "--steps=60"]) == 0
    sides = json.loads((tmp_path / "race" / "results.json").read_text())
    assert list(sides) == [*race.OURS.values(), "BERT by transformers' Trainer"]
    ours, peer = sides["BERT"], sides["BERT by transformers' Trainer"]
    assert peer["seconds"] == pytest.approx(max(side["seconds"] for side in sides.values()), rel=0.5)
    assert peer["parameters"] == pytest.approx(ours["parameters"], rel=0.02)  # no pooler there
    assert capfd.readouterr().out.count("\n") == 5
