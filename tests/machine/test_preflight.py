"""The table before a start: of one process in this one, of two in real ones."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bert_jax.cli.main import run
from bert_jax.inspection.check import as_table
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.machine.preflight import _alike, _of_inputs, _processes, _shared
from bert_jax.recipes.pretraining_settings import PretrainingSettings
from bert_jax.runs.inputs import Inputs
from bert_jax.runs.pretraining import first_model
from bert_jax.text import tokenizer as tokenizers
from tests import toy
from tests.training import gang


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gang.make_inputs(tmp_path_factory.mktemp("inputs"))


def preflight(recipe: Path, workdir: Path, *flags: str) -> tuple[list[int], str]:
    """(exit codes, what process 0 printed) of two processes."""
    port = gang.free_port()
    job = [f"--coordinator=127.0.0.1:{port}", "--num_processes=2", "--arrival_seconds=60"]
    command = [sys.executable, "-m", "bert_jax", "preflight", f"--config={recipe}", *flags, *job]
    processes = [
        subprocess.Popen(
            [*command, f"--workdir={workdir}", f"--process_id={number}"],
            stdout=subprocess.PIPE,
            env=toy.environment(),
            text=True,
        )
        for number in range(2)
    ]
    said = [process.communicate(timeout=120)[0] for process in processes]
    return [process.returncode for process in processes], said[0]


def test_two_that_fit(recipe: Path, tmp_path: Path) -> None:
    codes, said = preflight(recipe, tmp_path / "run")
    assert codes == [0, 0], said
    assert "verdict: ready" in said
    assert "2 on 1 host, 2 devices" in said
    assert "written and seen by all" in said
    assert not list((tmp_path / "run").iterdir())


@pytest.mark.heavy
def test_two_that_do_not(recipe: Path, tmp_path: Path) -> None:
    codes, said = preflight(recipe, tmp_path / "run", "--config.phases.phase1.batch_size=7")
    assert codes == [1, 1]
    assert "batch_size = 7 does not divide" in said
    assert "verdict: do not start: recipe" in said


def test_what_a_run_would_refuse(recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    named = ["--config.vocab.path=nowhere", f"--config.corpus.path={tmp_path}"]
    assert run(["preflight", f"--config={recipe}", f"--workdir={tmp_path}", *named]) == 1
    said = capsys.readouterr().out
    assert f"--workdir={tmp_path} is a corpus; give a new folder" in said
    assert "no vocabulary file nowhere" in said
    assert f"{tmp_path / 'manifest.json'} is damaged" in said
    assert "verdict: do not start: inputs, inputs, inputs" in said


def test_a_workdir_that_not_all_see_or_write() -> None:
    facts = [{"host": f"h{i}", "index": i, "workdir": "/w", "writes": True, "sees": True} for i in range(2)]
    assert _shared(facts).status == "ok"
    facts[1]["sees"] = False
    assert "process 1 on h1 cannot see what process 0 writes" in _shared(facts).figure
    facts[0]["writes"] = False
    assert "process 0 on h0 cannot write" in _shared(facts).figure
    assert _shared(facts).status == "bad"


def test_one_process_that_does_not_fit(recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [f"--workdir={tmp_path / 'run'}", "--config.phases.phase1.batch_size=7"]
    assert run(["preflight", f"--config={recipe}", *flags]) == 1
    said = capsys.readouterr().out
    assert "batch_size = 7 does not divide" in said
    assert "verdict: do not start: recipe" in said


def test_one_process(recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--config.vocab.path=", "--config.corpus.path=", "--config.mesh={'data': -1, 'tensor': 2}"]
    assert run(["preflight", f"--config={recipe}", f"--workdir={tmp_path}", *flags]) == 0
    said = capsys.readouterr().out
    assert "missing: the run makes it" in said
    assert "data 4, fsdp 1, tensor 2" in said


def of_inputs(recipe: Path, workdir: Path, initial: TrainedModel | None = None, **changes: Any) -> dict[str, Any]:
    """Return what a process reports about the inputs of a changed recipe."""
    settings = PretrainingSettings.of(json.loads(recipe.read_text()) | changes)
    return _of_inputs(Inputs(str(workdir), settings.vocab, settings.corpus, initial, False), None)


def test_the_vocabulary_is_that_of_the_model_to_start_from(recipe: Path, tmp_path: Path) -> None:
    tokenizer = tokenizers.load(str(recipe.parent / "vocab.txt"))
    settings = PretrainingSettings.of(json.loads(recipe.read_text()))
    initial = TrainedModel("", {}, first_model(settings, None), tokenizer)
    facts = [of_inputs(recipe, tmp_path, one, vocab={}) for one in (None, initial)]
    assert [one["vocabulary"] for one in facts] == [None, tokenizer.sha256[:12]]
    assert [one["problems"] for one in facts] == [[], []]


def test_a_recipe_of_fine_tuning_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["preflight", "--config=glue", f"--workdir={tmp_path / 'run'}"]) == 2
    assert "error: this recipe is one for fine-tuning (it has config.task)" in capsys.readouterr().err


def test_a_mixture_is_read_in_all_its_parts(recipe: Path, tmp_path: Path) -> None:
    corpus = str(recipe.parent / "corpus")
    parts = {"big": {"path": corpus, "weight": 3.0}, "small": {"path": corpus, "weight": 1.0}}
    found = of_inputs(recipe, tmp_path, corpus={"parts": parts})
    assert re.fullmatch("[0-9a-f]{12}", found["corpus"])
    parts["small"]["path"] = str(tmp_path / "nowhere")
    lacking = of_inputs(recipe, tmp_path, corpus={"parts": parts})
    assert (lacking["corpus"], lacking["problems"]) == (None, [])


def test_what_differs_is_named() -> None:
    facts = [{"host": f"h{i}", "index": i, "seen": 3, "code": "old" if i == 2 else "new"} for i in range(3)]
    found = _alike("code", facts)
    assert found.status == "bad"
    assert "old on h2 (process 2)" in found.figure
    lacking = _alike("frozen", [one | {"frozen": "config.teacher@1" if one["index"] else None} for one in facts])
    assert (lacking.status, lacking.figure.partition(" (")[0]) == ("bad", "none on h0, config.teacher@1 on h1")
    twice = [{**one, "index": 0} for one in facts]
    assert _processes(twice).status == "bad"
    assert "do not start: code" in as_table([found])
