"""What is no plain file is not read: to read a pipe, or /dev/zero, would never end."""

import os
import socket
from pathlib import Path

import pytest

from bert_jax.cli.main import run
from bert_jax.errors import UserError
from bert_jax.storage import files, reading
from bert_jax.storage.reading import NotPlainError
from bert_jax.workdir.run_record import only_writer
from bert_jax.workdir.steps import overview


@pytest.fixture(params=["pipe", "device", "socket"])
def strange(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)  # the name of a socket must be short
    path = Path("strange")
    if request.param == "pipe":
        os.mkfifo(path)
    elif request.param == "device":
        path.symlink_to("/dev/zero")
    else:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(path))
    return path


def test_it_is_an_error(strange: Path) -> None:
    for read in (reading.read_bytes, files.sha256, reading.lock_file):
        with pytest.raises(NotPlainError) as found:
            read(strange)
        assert (found.value.filename, found.value.strerror) == ("strange", "is a pipe, a socket or a device")
    assert reading.read_object(strange) is None
    assert not reading.has_content(strange, b"")


NAMES = ("run.json", "status.json", "metrics.jsonl", "vocab.txt")
COMMANDS = (["status"], ["report"], ["checkpoint", "ls"], ["tokenize", "a text", "--vocab=vocab.txt"])


@pytest.mark.parametrize("name", NAMES)
def test_commands_end_with_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo(name)
    for verb, *rest in COMMANDS:
        code = run([verb, *rest, *([] if verb == "tokenize" else ["--workdir=."])])
        said = capsys.readouterr().err
        assert (code, said.count("\n")) == ((2, 1) if said else (0, 0)), verb


@pytest.mark.parametrize("name", [".lock", "loop"])
def test_a_workdir_that_is_none(name: str, tmp_path: Path) -> None:
    workdir = tmp_path / "run"
    if name == "loop":
        workdir.symlink_to("run")
    else:
        workdir.mkdir()
        os.mkfifo(workdir / name)
    expected = {".lock": ".lock is not a plain file; remove it", "loop": "is a link that leads nowhere; give a new"}
    with pytest.raises(UserError, match=expected[name]), only_writer(str(workdir)):
        pass


def test_a_walk_does_not_follow_links(tmp_path: Path) -> None:
    step = tmp_path / "checkpoints" / "5"
    (step / "state").mkdir(parents=True)
    (step / "SHA256SUMS").write_text("")
    for name in ("a", "b"):
        (step / "state" / name).symlink_to(".")  # two of them: 2^40 paths until the system refuses
    assert files.below(step) == ["SHA256SUMS", "state/a", "state/b"]
    assert [saved.step for saved in overview(str(tmp_path))] == [5]
