"""The race beside transformers' Trainer: flags, recipes and table. tests/parity/test_race.py runs it in small."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bert_jax.recipes import recipes
from bert_jax.recipes.pretraining_settings import PretrainingSettings
from tests.benchmarks.race import __main__ as race


@pytest.mark.parametrize("name", ["bert", "modernbert", "bert_tiny", "modernbert_tiny"])
def test_the_recipes_are_sound(name: str) -> None:
    settings = PretrainingSettings.of(recipes.load(f"{race.RECIPE}:{name}").to_dict())
    assert settings.architecture.config.hidden_size == (64 if name.endswith("_tiny") else 512)


def test_bad_flags_are_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = {"torch", "transformers", "accelerate"}
    monkeypatch.setattr(race.importlib.util, "find_spec", lambda name: name in found or None)
    output = [f"--output={tmp_path}"]
    assert race.main(["--steps=2", *output]) == race.main(["--vocab=absent.txt", *output]) == 2
    found.remove("torch")
    assert race.main(output) == 2
    (tmp_path / "vocab.txt").touch()
    found.add("torch")
    assert race.main(output) == 2
    lines = capsys.readouterr().err.splitlines()
    for line, words in zip(
        lines, ("--steps is 2", "which is no file", "torch is not installed", "has a race"), strict=True
    ):
        assert line.startswith("error: ")
        assert words in line


def test_seconds_of_training_and_the_table(tmp_path: Path) -> None:
    records = [
        {"split": "heldout", "step": 0},
        {"split": "train", "step": 50, "step_seconds": 0.02},
        {"split": "train", "step": 80, "step_seconds": 0.01},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    assert race.trained_seconds(tmp_path) == pytest.approx(1.3)
    side = {"steps": 100, "seconds": 1.3, "loss": 2.664, "accuracy": 0.51, "parameters": 41_200_000}
    assert race.table({"BERT": side}).splitlines()[2] == "| BERT | 13.0 | 1.3 | 2.66 | 0.51 | 41.2M |"
