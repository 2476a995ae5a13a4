"""A private run leaves nothing of its text and its sources behind but shards, vocabulary and model."""

import json
from pathlib import Path

import pytest

from bert_jax.cli.main import run
from tests import toy

SECRETS = (b"topsecret", b"zzyzx")
TEXT = ("vocab.txt", "spiece.model", "tokenizer.json")  # what is learned from the text
SHORT = {
    "phases": {"phase1": {"num_steps": 2, "batch_size": 8, "max_length": 32}},
    "schedule": {"warmup_steps": 0},
}
SHARDS = ".array_record-"

pytestmark = pytest.mark.usefixtures("one_device")


def leaks(workdir: Path) -> set[str]:
    files = [path for path in workdir.rglob("*") if path.is_file()]
    kept = [path for path in files if path.name not in TEXT and SHARDS not in path.name]
    return {path.name for path in kept if any(secret in path.read_bytes() for secret in SECRETS)}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("topsecret")
    text = toy.write_text(folder / "text.txt")
    text.write_text(text.read_text().replace("letter", "zzyzx"))
    return toy.write_recipe(folder / "recipe.json", toy.recipe(text, **SHORT))


def test_nothing_is_left_behind(recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    private = ["pretrain", f"--config={recipe}", f"--workdir={tmp_path / 'private'}", "--private"]
    assert run(private) == 0
    said = "".join(capsys.readouterr())
    assert "topsecret" not in said
    assert {"report.html", "README.md", "manifest.json"} <= {p.name for p in (tmp_path / "private").rglob("*")}
    assert leaks(tmp_path / "private") == set()
    assert "zzyzx" in (tmp_path / "private" / "vocab.txt").read_text()
    assert run(["report", f"--workdir={tmp_path / 'private'}"]) == 0
    assert leaks(tmp_path / "private") == set()

    other = json.loads(recipe.read_text())
    other["corpus"]["options"]["paths"] = ["elsewhere.txt"]
    changed = toy.write_recipe(tmp_path / "changed.json", other)
    assert run(["pretrain", f"--config={changed}", *private[2:]]) == 2  # hashes tell that it is another run
    assert "config.corpus.options.paths" in capsys.readouterr().err


def test_an_error_names_its_file_on_the_terminal_alone(recipe: Path, tmp_path: Path, capsys) -> None:
    config = json.loads(recipe.read_text())
    bad = tmp_path / "topsecret-bad.txt"
    bad.write_bytes(b"Good text.\n\0")
    config["corpus"]["options"]["paths"] = [str(bad)]
    command = ["pretrain", f"--config={toy.write_recipe(tmp_path / 'r.json', config)}"]
    for flags, named in (([], True), (["--private"], False)):
        workdir = tmp_path / f"run{len(flags)}"
        workdir.mkdir()
        (workdir / "notes").touch()  # a folder that was empty or new would be left without a trace
        assert run([*command, f"--workdir={workdir}", *flags]) == 2
        assert "topsecret-bad.txt" in capsys.readouterr().err
        assert leaks(workdir) == ({"run.json", "status.json"} if named else set())
        said = json.loads((workdir / "status.json").read_text())["last_error"]
        assert str(bad) in said if named else said == "BadTextError"
