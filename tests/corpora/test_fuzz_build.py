"""Random files through the whole command: a store with every file accounted for, or one line that names the file."""

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bert_jax.cli import main
from bert_jax.corpora.store import Corpus
from tests.corpora.test_fuzz_sources import ATOMS, random_file

GOOD_FILES = 40  # enough for two of them to be held out
GOOD = "This is a good sentence. Here is another one.\n"


def make_files(folder: Path, count: int, generator: random.Random) -> int:
    """``count`` random files among the good ones; how many there are."""
    folder.mkdir()
    for number in range(count):
        random_file(generator, folder, number, ATOMS)
    for number in range(GOOD_FILES):
        (folder / f"good{number}.txt").write_text(GOOD * (number + 1))
    return count + GOOD_FILES


def command(folder: Path, vocab: Path, output: Path, bad_text: str) -> list[str]:
    return [
        *("corpus", "--config=bert_base", f"--config.corpus.options.paths={folder}/*", f"--output={output}"),
        *(f"--config.vocab.path={vocab}", f"--config.corpus.options.bad_text={bad_text}"),
        *("--config.corpus.heldout_fraction=0.4", "--config.corpus.num_workers=1"),
    ]


def check(folder: Path, output: Path, code: int, error: str, files: int) -> None:
    """Check a build that left bad text out."""
    assert code == 0, error
    manifest = Corpus(output).manifest
    skipped = {reason: facts["count"] for reason, facts in manifest["skipped"].items()}
    whole_files = sum(count for reason, count in skipped.items() if reason in ("empty file", "not a text file"))
    assert manifest["documents"] + sum(skipped.values()) >= files
    assert manifest["documents"] + whole_files <= files
    kept = sum(split["num_documents"] for split in manifest["splits"].values())
    assert kept + manifest["dropped"]["empty_documents"] == manifest["documents"]
    assert kept >= GOOD_FILES


def check_error(folder: Path, output: Path, code: int, error: str) -> None:
    """Check a build that stops at bad text: it stopped at some, or there was none."""
    if code == 0:
        return
    assert code == 2
    assert error.startswith("error: ")
    assert "\n" not in error.strip()
    assert str(folder) in error
    assert re.search(r"byte offset \d+|after \d+ unpacked bytes", error), error
    assert not output.exists()


@pytest.fixture
def vocab(tmp_path: Path) -> Path:
    path = tmp_path / "vocab.txt"
    letters = "abcdefghijklmnopqrstuvwxyz."
    path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{c}" for c in letters)]))
    return path


def fuzz(tmp_path: Path, vocab: Path, capsys: pytest.CaptureFixture[str], corpora: int, count: int) -> None:
    generator = random.Random(corpora)
    for number in range(corpora):
        folder, output = tmp_path / f"text{number}", tmp_path / f"store{number}"
        files = make_files(folder, count, generator)
        code = main.run(command(folder, vocab, output, "error"))
        check_error(folder, output, code, capsys.readouterr().err)
        code = main.run(command(folder, vocab, tmp_path / f"kept{number}", "skip"))
        check(folder, tmp_path / f"kept{number}", code, capsys.readouterr().err, files)


def test_a_hundred_random_files(tmp_path: Path, vocab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fuzz(tmp_path, vocab, capsys, corpora=2, count=50)


@pytest.mark.heavy
def test_five_thousand_random_files(tmp_path: Path, vocab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fuzz(tmp_path, vocab, capsys, corpora=100, count=50)


@pytest.mark.heavy
def test_fifty_through_the_real_command(tmp_path: Path, vocab: Path) -> None:
    generator = random.Random(1)
    for number in range(50):
        folder, output = tmp_path / f"text{number}", tmp_path / f"store{number}"
        files = make_files(folder, 1, generator)
        flags = command(folder, vocab, output, ("error", "skip")[number % 2])
        done = subprocess.run(
            [sys.executable, "-m", "bert_jax", *flags], capture_output=True, text=True, check=False,
            env={**os.environ, "PYTHONPATH": os.getcwd()},
        )  # fmt: skip
        assert "Traceback" not in done.stderr
        if number % 2:
            check(folder, output, done.returncode, done.stderr, files)
            assert json.loads((output / "manifest.json").read_text())["documents"] >= GOOD_FILES
        else:
            check_error(folder, output, done.returncode, done.stderr)
