"""A folder that is replaced is there, old or new, wherever the replacement is cut."""

import itertools
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from bert_jax.storage import files
from bert_jax.storage.remote import RemotePath
from bert_jax.storage.replacing import replaced_directory


@pytest.fixture
def bucket() -> str:
    return f"memory://bucket-{uuid.uuid4().hex}"


KILLED = """
import os, shutil, sys
from bert_jax.storage.replacing import replaced_directory

def counted(call):
    def calls(*arguments, **keywords):
        global left
        left -= 1
        if left < 0:
            os._exit(9)
        return call(*arguments, **keywords)
    return calls

for target in sys.argv[1:]:  # killed at the first call for the first one, at the second for the second, ...
    left = sys.argv.index(target) - 1
    if (child := os.fork()) == 0:
        with replaced_directory(target) as folder:
            (folder / "a").write_text("new")
            (folder / "b").write_text("new")
            os.replace, shutil.rmtree, os.unlink = map(counted, (os.replace, shutil.rmtree, os.unlink))
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def content(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_a_replacement_may_be_killed_anywhere(tmp_path):
    targets = [tmp_path / str(calls) / "model" for calls in range(12)]
    for target in targets:
        target.mkdir(parents=True)
        (target / "a").write_text("old")
    done = subprocess.run([sys.executable, "-c", KILLED, *targets], capture_output=True, text=True, check=True)
    codes = done.stdout.split()
    assert (codes[0], codes[-1]) == ("9", "0")  # all calls were tried
    old, new = {"a": "old"}, {"a": "new", "b": "new"}
    left = [content(target) if target.exists() else None for target in targets]
    assert [state for state, _ in itertools.groupby(left)] == [old, None, new]
    for target, state in zip(targets, left, strict=True):
        with pytest.raises(ValueError, match="x"), replaced_directory(target):
            raise ValueError("x")
        assert content(target) == (state or old)
        assert [path.name for path in target.parent.iterdir()] == ["model"]


def test_a_replacement_that_fails_leaves_the_old_one(tmp_path, monkeypatch):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "a").write_text("old")
    replace = os.replace

    def interrupted(source, target):
        if target == tmp_path / "model" and source.suffix == ".new":
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt), replaced_directory(tmp_path / "model") as folder:
        (folder / "a").write_text("new")
    assert content(tmp_path / "model") == {"a": "old"}
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_remote_replacement_that_is_cut_is_not_whole_and_can_be_made_again(bucket, monkeypatch):
    target = f"{bucket}/model"
    with files.whole_directory(target) as folder:
        (folder / "a").write_text("old")
        (folder / "b").write_text("old")
    for cut in ("unlink", "rmtree"):
        with monkeypatch.context() as patched:
            patched.setattr(RemotePath, cut, lambda *_, **__: pytest.fail("cut"))
            with pytest.raises(pytest.fail.Exception), replaced_directory(target) as folder:
                (folder / "a").write_text("new")
        assert (files.as_path(target) / files.UNFINISHED).exists()
    assert not files.is_whole(target)
    with replaced_directory(target) as folder:
        (folder / "a").write_text("new")
    assert {path.name for path in files.as_path(target).iterdir()} == {"a", files.MARKER}
