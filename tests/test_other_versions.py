"""What another version wrote is refused in one line, which says the last commit that reads it and what to do."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bert_jax.checkpoints.integrity import FACTS, write_lists
from bert_jax.checkpoints.restoring import read_params, saved_steps
from bert_jax.checkpoints.saving import save_params
from bert_jax.cli.main import run
from bert_jax.corpora.manifest import seal
from bert_jax.corpora.store import Corpus
from bert_jax.errors import UserError
from bert_jax.experiments.grid import Grid
from bert_jax.experiments.nouns import Cell
from bert_jax.workdir.run_record import write_run
from tests import toy

OLDER = "{} was written by an older version ({}, this one reads {}); the last commit that reads it is {}: {}"


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    """A run that saved a step, and whose record says nothing of a format."""
    folder = tmp_path / "run"
    save_params(str(folder), {"encoder": {"bias": np.zeros(4, np.float32)}}, {"run": {"run_id": "r"}})
    write_run(str(folder), {"run_id": "r", "identity": {"objective": {"name": "mlm"}}})
    edit(folder / "run.json", lambda run: run.pop("format"))
    return folder


def edit(path: Path, change: Callable[[dict], object]) -> None:  # type: ignore[type-arg]
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert run([*argv]) == 2
    [line] = capsys.readouterr().err.splitlines()
    return line


def test_an_old_workdir(workdir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = toy.write_recipe(tmp_path / "recipe.json", toy.recipe(toy.write_text(tmp_path / "text.txt")))
    commands = (
        ("pretrain", f"--config={recipe}", f"--workdir={workdir}"),
        ("pretrain", f"--config={recipe}", f"--workdir={tmp_path / 'new'}", f"--init={workdir}"),
        ("export", f"--workdir={workdir}", f"--output={tmp_path / 'model'}"),
    )
    make = f"go on with that commit, or start from what it exports (`bert-jax export --workdir={workdir} --output=DIR`)"
    for command in commands:
        assert OLDER.format(workdir, "without a format", 2, "bbd49a63", make) in refused(capsys, *command)
    (workdir / "hugging_face").mkdir()
    (workdir / "hugging_face" / "config.json").write_text("{}")
    start = f"go on with that commit, or start from the run's export (--init={workdir}/hugging_face)"
    assert OLDER.format(workdir, "without a format", 2, "bbd49a63", start) in refused(capsys, *commands[0])
    edit(workdir / "run.json", lambda run: run.update(format=3))
    newer = f"{workdir} was written by a newer version (format 3, this one reads 2); take that one"
    assert newer in refused(capsys, *commands[0])
    assert saved_steps(str(workdir)) == [0]


def test_an_old_step_beside_a_new_record(workdir: Path) -> None:
    (workdir / "run.json").unlink()
    read_params(str(workdir))
    edit(workdir / "checkpoints/0" / FACTS, lambda facts: facts.pop("format"))
    (workdir / "checkpoints/0/SHA256SUMS").unlink()
    write_lists(workdir / "checkpoints/0")
    with pytest.raises(UserError, match="run was written by an older version .without a format, this one reads 2"):
        read_params(str(workdir))


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        (
            {"format_version": 2, "files": {}},
            OLDER.format("the corpus {}", "without a format", 3, "cf58cc3", "build it again"),
        ),
        ({"format": 4}, "the corpus {} was written by a newer version (format 4, this one reads 3); take that one"),
    ],
)
def test_a_corpus(tmp_path: Path, manifest: dict[str, object], said: str) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps(seal(manifest)))
    with pytest.raises(UserError) as error:
        Corpus(tmp_path)
    assert str(error.value) == said.format(tmp_path)


@pytest.mark.parametrize("name", ["cell.json", "finished.json"])
def test_a_run_of_a_grid(tmp_path: Path, name: str) -> None:
    cell = Cell("first", {"seed": 1})
    Grid([cell], str(tmp_path)).run(lambda cell, folder: {"loss": 1.0})
    path = tmp_path / "first" / name
    edit(path, lambda record: record.pop("format"))
    with pytest.raises(UserError) as error:
        Grid([cell], str(tmp_path)).run(lambda cell, folder: {"loss": 2.0})
    assert str(error.value) == OLDER.format(path, "without a format", 2, "a2c18cd0", "give another --workdir")
