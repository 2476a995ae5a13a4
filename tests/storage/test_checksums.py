"""A list of sha256 finds what has changed beside it."""

import os
import subprocess
from pathlib import Path

import pytest

from bert_jax.storage.checksums import CHECKSUMS, first_damage, write_checksums


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a", "b b"):
        (tmp_path / name).write_text(name)
    (tmp_path / "unlisted").write_text("c")
    write_checksums(tmp_path, ["b b", "a"])
    return tmp_path


def test_sha256sum_reads_it(folder: Path) -> None:
    done = subprocess.run(["sha256sum", "--check", CHECKSUMS], cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout == "a: OK\nb b: OK\n"


def test_what_changed_is_named(folder: Path) -> None:
    (folder / "unlisted").write_text("d")
    assert first_damage(folder) is None
    (folder / "b b").write_text("b c")
    assert first_damage(folder) == "b b is damaged: its sha256 differs from SHA256SUMS"
    (folder / "a").unlink()
    assert first_damage(folder) == "'a', which SHA256SUMS lists, is missing"


@pytest.mark.parametrize("spoilt", [b"\xff\x00", b"0" * 64 + b"  ", b"0" * 64 + b"  " + b"x" * 5000, b"0  a\n"])
def test_a_spoilt_list_is_a_damage(folder: Path, spoilt: bytes) -> None:
    (folder / CHECKSUMS).write_bytes(spoilt)
    assert first_damage(folder) is not None


def test_a_list_that_was_cut_and_what_is_no_file(folder: Path) -> None:
    (folder / "a").unlink()
    os.mkfifo(folder / "a")  # to read it would wait for ever
    assert first_damage(folder) == "a is a pipe, a socket or a device"
    (folder / CHECKSUMS).write_text("")
    assert first_damage(folder, wanted=["a"]) == "SHA256SUMS does not list a"
    (folder / CHECKSUMS).write_text("\n6a3c\n")
    assert first_damage(folder) == "SHA256SUMS is damaged: '6a3c' is not a sha256, two spaces and a name"
    (folder / CHECKSUMS).unlink()
    (folder / CHECKSUMS).symlink_to("/dev/zero")
    assert first_damage(folder) == "SHA256SUMS is a pipe, a socket or a device"


def test_a_folder_without_a_list_is_reported(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        first_damage(tmp_path)
