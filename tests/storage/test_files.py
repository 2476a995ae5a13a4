"""Whole writes on disks and object stores."""

import errno
import os
import signal
import subprocess
import sys
import uuid

import pytest

from bert_jax.errors import UserError
from bert_jax.storage import files, globs, write_errors


@pytest.fixture
def bucket() -> str:
    return f"memory://bucket-{uuid.uuid4().hex}"


def full_disk(*_args, **_options):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_write_replaces_a_file_whole(tmp_path):
    target = tmp_path / "sub" / "a.txt"
    files.write_text(target, "one")
    files.write_text(target, "tö")
    assert target.read_text("utf-8") == "tö"
    assert [p.name for p in target.parent.iterdir()] == ["a.txt"]


def test_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    target = tmp_path / "a.txt"
    files.write_text(target, "one")
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(UserError, match=r"cannot write .*a.txt: No space left on device; free some space"):
        files.write_text(target, "two")
    assert target.read_text() == "one"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_directory_appears_whole(tmp_path):
    target = tmp_path / "out"
    with files.whole_directory(target) as folder:
        (folder / "a").write_text("1")
        assert not target.exists()
    assert (target / "a").read_text() == "1"
    assert files.is_whole(target)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def write_and_fail(target: str | os.PathLike[str], error: Exception) -> None:
    with files.whole_directory(target) as folder:
        (folder / "a").write_text("1")
        raise error


@pytest.mark.parametrize("error", [ValueError("x"), OSError(errno.ENOSPC, "No space left on device")])
def test_directory_vanishes_on_any_error(tmp_path, error):
    with pytest.raises(UserError if isinstance(error, OSError) else ValueError):
        write_and_fail(tmp_path / "out", error)
    assert list(tmp_path.iterdir()) == []


def test_errors_of_reading_are_not_blamed_on_the_target(tmp_path):
    with pytest.raises(FileNotFoundError), files.whole_directory(tmp_path / "out"):
        (tmp_path / "input").read_text()


def test_directory_does_not_overwrite(tmp_path):
    (tmp_path / "empty").mkdir()
    with files.whole_directory(tmp_path / "empty") as folder:
        (folder / "a").write_text("1")
    with pytest.raises(UserError, match="exists already and is not empty"), files.whole_directory(tmp_path / "empty"):
        pass
    assert (tmp_path / "empty" / "a").exists()


def test_killed_process_leaves_nothing_that_counts_and_the_next_one_sweeps(tmp_path):
    code = (
        "import sys, time\nfrom bert_jax.storage import files\n"
        "with files.whole_directory(sys.argv[1]) as folder:\n"
        "    (folder / 'a').write_text('1')\n    print('ready', flush=True)\n    time.sleep(60)\n"
    )
    target = tmp_path / "out"
    with subprocess.Popen([sys.executable, "-c", code, str(target)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGKILL)
    assert not files.is_whole(target)
    assert len(list(tmp_path.iterdir())) == 1  # the temporary
    with files.whole_directory(target) as folder:
        (folder / "b").write_text("2")
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert [p.name for p in target.iterdir()] == ["b"]


def test_a_living_process_is_not_swept(tmp_path):
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        other = tmp_path / f"out.{files.socket.gethostname()}.{process.pid}.tmp"
        other.mkdir()
        with files.whole_directory(tmp_path / "out"):
            pass
        assert other.exists()
        process.kill()


def test_remote_paths_read_and_write(bucket):
    path = files.as_path(f"{bucket}/a/b.txt")
    files.write_text(path, "hé")
    assert path.read_text() == "hé"
    assert (path.name, path.suffix, str(path.parent)) == ("b.txt", ".txt", f"{bucket}/a")
    assert [str(p) for p in files.as_path(bucket).iterdir()] == [f"{bucket}/a"]
    assert path.parent.is_dir()
    assert path.is_file()
    path.unlink()
    path.unlink(missing_ok=True)
    assert not path.exists()


def test_unknown_store_is_explained():
    with pytest.raises(UserError, match="cannot open nowhere://x"):
        files.as_path("nowhere://x").exists()


def test_remote_directory_counts_once_its_marker_is_there(bucket):
    target = f"{bucket}/out"
    files.write_text(f"{target}/leftover", "of a try that was cut")
    with pytest.raises(UserError, match="holds files of something else"), files.whole_directory(target):
        pass
    files.write_text(f"{target}/{files.UNFINISHED}", "")
    assert not files.is_whole(target)
    with files.whole_directory(target) as folder:
        (folder / "sub").mkdir()
        (folder / "sub" / "a").write_text("1")
        assert not files.is_whole(target)
    assert files.is_whole(target)
    assert files.below(target) == [files.MARKER, "sub/a"]
    with pytest.raises(UserError, match="exists already"), files.whole_directory(target):
        pass


def test_failed_remote_write_has_no_marker(bucket):
    with pytest.raises(ValueError, match="x"):
        write_and_fail(f"{bucket}/out", ValueError("x"))
    assert not files.as_path(f"{bucket}/out").exists()


def test_a_failed_write_leaves_no_folder(tmp_path, monkeypatch):
    """Not even those above it, unless something else has come into them."""
    for writer in (files.whole_directory, files.whole_file):
        with pytest.raises(ValueError, match="x"), writer(tmp_path / "a" / "b" / "out"):
            raise ValueError("x")

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(UserError, match="No space left"):
            files.write_text(tmp_path / "a" / "b" / "out", "x")
    assert not list(tmp_path.iterdir())
    with files.whole_file(tmp_path / "a" / "b" / "out") as path:
        path.touch()
    assert [str(p.relative_to(tmp_path)) for p in sorted(tmp_path.rglob("*"))] == ["a", "a/b", "a/b/out"]


def test_globs(tmp_path, bucket):
    for name in ("b.txt", "a.txt", "sub/c.txt", "d.gz"):
        files.write_text(tmp_path / name, "x")
        files.write_text(f"{bucket}/{name}", "x")
    for root in (str(tmp_path), bucket):
        assert [str(p) for p in globs.matches(f"{root}/*.txt")] == [f"{root}/a.txt", f"{root}/b.txt"]
        assert [p.name for p in globs.matches(f"{root}/**/*.txt")] == ["a.txt", "b.txt", "c.txt"]
        assert globs.matches(f"{root}/*.xz") == []


def test_links_to_folders_are_followed_and_no_file_is_found_twice(tmp_path, monkeypatch):
    """``glob`` itself would find ``a.txt`` in 2^40 places."""
    for name in ("a.txt", "sub/b.txt", "sub/sub/c.txt", ".hidden/d.txt", "[x]/e.txt"):
        files.write_text(tmp_path / "root" / name, "x")
    files.write_text(tmp_path / "other" / "f.txt", "x")
    (tmp_path / "root" / "sub" / "link").symlink_to(tmp_path / "other")
    (tmp_path / "other" / "back").symlink_to(tmp_path / "root")
    for name in ("up", "sub/up", "sub/sub/up"):
        (tmp_path / "root" / name).symlink_to(tmp_path / "root")
    (tmp_path / "root" / "itself").symlink_to("itself")
    every = ["[x]/e.txt", "a.txt", "sub/b.txt", "sub/link/f.txt", "sub/sub/c.txt"]
    for pattern in ("**/*.txt", "**", "**/*"):
        assert [str(p) for p in globs.matches(f"{tmp_path}/root/{pattern}")] == [f"{tmp_path}/root/{x}" for x in every]
    assert [p.name for p in globs.matches(f"{tmp_path}/root/**/sub/**/*.txt")] == ["b.txt", "f.txt", "c.txt"]
    monkeypatch.chdir(tmp_path / "root")
    assert [str(p) for p in globs.matches("**/*.txt")] == every
    assert [str(p) for p in globs.matches("sub/**/*.txt")] == every[2:]


def test_sha256(tmp_path):
    files.write_bytes(tmp_path / "a", b"abc")
    assert files.sha256(tmp_path / "a").startswith("ba7816bf")


def test_the_advice_fits_the_cause(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("x")
    for target in ("folder", "file/below"):
        with pytest.raises(UserError, match="something else has that name: move it away") as error:
            files.write_text(tmp_path / target, "x")
        assert "space" not in str(error.value)


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (errno.ENOSPC, "free some space"),
        (errno.EDQUOT, "free some space"),
        (errno.EFBIG, "raise the limit"),
        (errno.EACCES, "that you may write to"),
        (errno.EROFS, "that you may write to"),
        (errno.EMFILE, "limit on open files"),
        (errno.EBUSY, "choose another place"),
    ],
)
def test_advice_by_error(code, advice):
    in_words = RuntimeError(f"INTERNAL: {'x' * 300}: OS error {code}: {os.strerror(code)} [at a.cc:1]")
    for error in (OSError(code, os.strerror(code)), in_words)[: 2 if code in write_errors.REMEDIES else 1]:
        found = write_errors.write_advice(error)
        assert advice in found
        assert ("space" in found) == (code in write_errors.FULL)
        assert os.strerror(code) in write_errors.reason(error)


@pytest.mark.parametrize("name", ["a\0b", "a\ud800b"])
def test_what_no_file_system_can_have(name):
    with pytest.raises(UserError, match="is not a path"):
        files.as_path(name)
    assert files.as_path("a\udcffb").name == "a\udcffb"  # a byte that is not UTF-8, as a listing gives it
