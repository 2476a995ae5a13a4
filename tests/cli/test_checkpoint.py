"""``bert-jax checkpoint``: what is saved in a workdir, and whether it is as it was saved."""

import shutil
from pathlib import Path

import pytest

from bert_jax.checkpoints.restoring import steps_folder
from bert_jax.checkpoints.saving import save_params
from bert_jax.cli.main import run
from bert_jax.storage import files
from bert_jax.workdir.steps import MARKS
from tests.checkpoints.test_checkpoints import FACTS, save, state_at
from tests.checkpoints.test_integrity import arrays_file, flip


def lines(capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    """Name, size and time aside, what is said of each step."""
    return [line.split(maxsplit=5) for line in capsys.readouterr().out.splitlines()]


def test_a_step_below_zero_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["checkpoint", "ls", f"--workdir={tmp_path}", "--step=-1"]) == 2
    assert "--step: found '-1'; a whole number from 0" in capsys.readouterr().err


def test_steps_are_listed_and_verified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [f"--workdir={tmp_path}"]
    assert run(["checkpoint", "ls", *command]) == 2
    assert "has no saved step; give the --workdir of a run" in capsys.readouterr().err
    save(str(tmp_path), 5, 10, 15)
    save_params(str(tmp_path / "best"), state_at(3).params, FACTS)
    shutil.move(tmp_path / "checkpoints" / "15", tmp_path / "damaged-step-15")
    (tmp_path / "corpus").mkdir()
    assert run(["checkpoint", "ls", *command]) == 0
    found = lines(capsys)
    names = ["checkpoints/5", "checkpoints/10", "best/checkpoints/0", "damaged-step-15"]
    assert [line[0] for line in found] == names
    assert [line[-1] for line in found] == ["complete"] * 3 + ["set aside: it was found to be damaged"]
    assert float(found[1][1]) > 0
    assert found[1][2] == "MB"

    assert run(["checkpoint", "verify", *command]) == 0
    said = [line[-1] for line in lines(capsys)]
    assert said[:3] == ["whole"] * 3
    flip(arrays_file(tmp_path / "checkpoints" / "10"))
    assert run(["checkpoint", "verify", *command, "--step=5"]) == 0
    assert run(["checkpoint", "verify", *command, "--step=7"]) == 2
    output = capsys.readouterr()
    assert "has no saved step 7, only 0, 5, 10, 15; choose one of them" in output.err
    assert run(["checkpoint", "verify", *command]) == 1
    assert "is damaged: its sha256 differs from SHA256SUMS (array " in lines(capsys)[1][-1]


def test_what_is_misplaced_or_not_complete_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(str(tmp_path), 5, 10, 15)
    steps = tmp_path / "checkpoints"
    for old, new in (("5", "x"), ("10", "5"), ("x", "10")):
        (steps / old).rename(steps / new)
    for mark in MARKS[:2]:
        (steps / "15" / mark).unlink()
    (tmp_path / "run.json").write_text('{"run_id": "ours"}')
    facts = FACTS | {"run": {"run_id": "theirs"}}
    save_params(str(tmp_path / "best"), state_at(3).params, facts)
    assert run(["checkpoint", "verify", f"--workdir={tmp_path}"]) == 1
    another, lost = "is of another run", "is not complete: it has none of commit_success.txt, SHA256SUMS, COMMITTED"
    said = [line[-1] for line in lines(capsys)]
    assert said == [f"{another} (None; this one is ours)"] * 2 + [lost, f"{another} (theirs; this one is ours)"]
    (tmp_path / "run.json").unlink()
    assert run(["checkpoint", "verify", f"--workdir={tmp_path}"]) == 1
    assert [line[-1] for line in lines(capsys)] == ["holds step 10", "holds step 5", lost, "whole"]


def test_those_of_an_object_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path))
    run_folder = "memory://verified/run"
    save(run_folder, 5)
    assert run(["checkpoint", "verify", f"--workdir={run_folder}"]) == 0
    assert [line[0] for line in lines(capsys)] == ["checkpoints/5"]
    facts = steps_folder(run_folder) / "5" / "facts" / "metadata"
    facts.write_bytes(facts.read_bytes() + b" ")
    assert run(["checkpoint", "verify", f"--workdir={run_folder}"]) == 1
    assert "facts/metadata is damaged: its sha256 differs from COMMITTED" in capsys.readouterr().out
    files.as_path(run_folder).rmtree()
