"""A run whose workdir is on an object store (fsspec's memory file system): whole, resumed, exported, gone on from."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.checkpoints.restoring import saved_steps
from bert_jax.cli.main import run
from bert_jax.interchange.loading import load
from bert_jax.storage import files
from tests import toy
from tests.runs.commands import first_state

STORE = "memory://runs-under-test"


@pytest.fixture(autouse=True)
def _store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path / "cache"))
    yield
    if files.as_path(STORE).exists():
        files.as_path(STORE).rmtree()


def evaluations(workdir: str) -> list[dict[str, Any]]:
    lines = map(json.loads, (files.as_path(workdir) / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["split"] == "eval"]


@pytest.mark.usefixtures("one_device")
def test_a_run_on_a_store_and_one_that_goes_on_from_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = toy.recipe(toy.write_text(tmp_path / "text.txt"), training={"eval_every_steps": 10})
    recipe = toy.write_recipe(tmp_path / "recipe.json", config)
    workdir, exported = f"{STORE}/run", f"{STORE}/model"
    command = ["pretrain", f"--config={recipe}", f"--workdir={workdir}"]

    def refuse(source: Path, target: Any, **keywords: Any) -> None:
        if source.name == "15":
            raise OSError("the bucket's quota is spent")
        upload(source, target, **keywords)

    upload = files.upload
    monkeypatch.setattr(files, "upload", refuse)
    assert run(command) == 2
    assert "quota is spent" in capsys.readouterr().err
    assert saved_steps(workdir) == [5, 10]

    monkeypatch.setattr(files, "upload", upload)
    assert run(command) == 0
    assert "resumed at step 10" in capsys.readouterr().err
    assert saved_steps(workdir) == [15, 20, 24]
    assert [line["step"] for line in evaluations(workdir)] == [0, 10, 20, 24]
    for name in ("report.html", "hugging_face/model.safetensors", "examples.json", "corpus/COMMITTED"):
        assert (files.as_path(workdir) / name).exists()

    assert run(["status", f"--workdir={workdir}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "finished"
    assert run(["export", f"--workdir={workdir}", f"--output={exported}"]) == 0
    (files.as_path(exported) / files.MARKER).unlink()  # as another program would have put it there
    assert run(["import", f"--input={exported}", f"--workdir={STORE}/imported"]) == 0
    assert saved_steps(f"{STORE}/imported") == [0]
    assert not any((tmp_path / "cache" / "checkpoints").iterdir())  # nothing is left on this machine

    reached = request.getfixturevalue("reached")
    flags = [f"--config.corpus.path={workdir}/corpus", f"--init={workdir}@20"]
    assert run(["pretrain", f"--config={recipe}", f"--workdir={tmp_path / 'second'}", *flags]) == 130
    _, first = first_state(reached[0])
    jax.tree.map(np.testing.assert_array_equal, first.params, load(f"{workdir}@20").params)
    assert len(reached[0].task.heldout_rows("phase1", 4)["input_ids"]) == 4, "of the corpus on the store"
