"""The real command, killed again and again, ends with the bytes of a build that was left alone."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bert_jax.storage import files
from tests import toy

KILLS = 20
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.getcwd()}


def command(text: Path, vocab: Path, output: Path, workers: int) -> list[str]:
    return [
        *(sys.executable, "-m", "bert_jax", "corpus", "--config=bert_base", f"--output={output}"),
        *(f"--config.vocab.path={vocab}", f"--config.corpus.options.paths=('{text}/*',)"),
        *("--config.corpus.options.document_boundary=blank_line", "--config.corpus.heldout_fraction=0.1"),
        *("--config.corpus.part_bytes=200000", f"--config.corpus.num_workers={workers}"),
    ]


def bytes_of(folder: Path) -> dict[str, str]:
    return {path.name: files.sha256(path) for path in folder.iterdir()}


@pytest.mark.heavy
def test_twenty_kills_and_any_number_of_workers_leave_the_same_bytes(tmp_path: Path) -> None:
    text, vocab = tmp_path / "text", tmp_path / "vocab.txt"
    text.mkdir()
    for number in range(60):
        toy.write_text(text / f"{number:02d}.txt", documents=600, seed=number)
    words = ["the", "cat", "a", "dog", "sees", "house", "red", ".", "##s"]
    vocab.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]) + "\n")
    start = time.monotonic()
    subprocess.run(command(text, vocab, tmp_path / "whole", 1), check=True, env=ENVIRONMENT, capture_output=True)
    seconds = time.monotonic() - start
    whole = bytes_of(tmp_path / "whole")

    rng = random.Random(0)
    for workers in (2, 4):
        run = command(text, vocab, tmp_path / f"workers{workers}", workers)
        subprocess.run(run, check=True, env=ENVIRONMENT, capture_output=True)
        assert bytes_of(tmp_path / f"workers{workers}") == whole
    kills = attempt = 0
    while kills < KILLS:
        attempt += 1
        run = command(text, vocab, tmp_path / "killed", 1 + attempt % 2)
        process = subprocess.Popen(run, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            process.wait(timeout=rng.uniform(0.3, seconds))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
        if (tmp_path / "killed").exists():  # it was quicker; once more from the start, killed earlier
            seconds = max(0.9 * seconds, 1.0)
            assert bytes_of(tmp_path / "killed") == whole
            (tmp_path / "killed").rename(tmp_path / f"finished{attempt}")
        assert attempt < 5 * KILLS
    last = command(text, vocab, tmp_path / "killed", 2)
    done = subprocess.run(last, check=False, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert bytes_of(tmp_path / "killed") == whole
    assert not [path for path in tmp_path.iterdir() if ".partial" in path.name]
