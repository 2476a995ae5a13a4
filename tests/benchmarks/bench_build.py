"""MB/s from raw text to the shards of a store, beside the libraries that others build with, and the memory it takes.

The text is the docstring corpus, repeated, or the files of ``$BERT_JAX_BENCH_TEXT`` (a glob). The vocabulary is
learned from it, or ``$BERT_JAX_BENCH_VOCAB``.
"""

import glob
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tokenizers

from bert_jax.corpora.docstrings import Source
from bert_jax.corpora.source import documents
from bert_jax.text.tokenizer import load

WORKERS = len(os.sched_getaffinity(0))


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A folder of about 80 MB of text."""
    folder = tmp_path_factory.mktemp("text")
    if pattern := os.environ.get("BERT_JAX_BENCH_TEXT"):
        for number, path in enumerate(sorted(glob.glob(pattern, recursive=True))):
            (folder / f"{number:05d}.txt").symlink_to(os.path.abspath(path))
        return folder
    lines = ["\n".join(document.sentences) for document in documents(Source())]
    for copy in range(8):
        for start in range(0, len(lines), 100):
            (folder / f"{copy}-{start // 100}.txt").write_text("\n\n".join(lines[start : start + 100]))
    return folder


@pytest.fixture(scope="module")
def vocab(text, tmp_path_factory):
    if path := os.environ.get("BERT_JAX_BENCH_VOCAB"):
        return path
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    start = time.perf_counter()
    run(["vocab", *source_flags(text), "--config.vocab.size=30000", f"--output={path}"])
    print(f"\nvocabulary of 30,000 pieces from {megabytes(text):.0f} MB: {time.perf_counter() - start:.1f} s")
    return path


def source_flags(text, files="*"):
    paths = f"--config.corpus.options.paths=({str(text / files)!r},)"
    return ["--config=bert_base", "--config.corpus.heldout_fraction=0.1", paths]


def megabytes(text, files="*"):
    return sum(os.path.getsize(path) for path in text.glob(files)) / 1e6


def run(flags):
    """Run a verb; the largest resident set of its processes, in MB."""
    program = (
        "import resource, sys; from bert_jax.cli.main import run; code = run(sys.argv[1:]); "
        "print('peak', max(resource.getrusage(w).ru_maxrss for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)));"
        "sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", program, *flags], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.rpartition("peak ")[2]) / 1e3


@pytest.mark.parametrize("workers", sorted({1, WORKERS}))
def test_build(text, vocab, tmp_path, workers):
    start = time.perf_counter()
    flags = [f"--config.vocab.path={vocab}", f"--config.corpus.num_workers={workers}", f"--output={tmp_path / 'out'}"]
    peak = run(["corpus", *source_flags(text), *flags])
    seconds = time.perf_counter() - start
    built = json.loads((tmp_path / "out" / "manifest.json").read_text())["text_bytes"] / 1e6
    print(f"\nbuild, {workers} workers, start-up included: {built / seconds:.1f} MB/s, largest process {peak:.0f} MB")


def test_ten_times_the_text_takes_the_same_memory(text, vocab, tmp_path):
    flags = [f"--config.vocab.path={vocab}", f"--config.corpus.num_workers={WORKERS}"]
    flags += ["--config.corpus.heldout_fraction=0.3"]
    for files in ("*1.txt", "*"):
        peak = run(["corpus", *source_flags(text, files), *flags, f"--output={tmp_path / str(len(files))}"])
        print(f"\n{megabytes(text, files):.0f} MB of text: largest process {peak:.0f} MB")


def test_peer(text, vocab):
    """``tokenizers`` alone: encode_batch of lines, all cores, nothing split, checked, held out or written."""
    tokenizer = tokenizers.Tokenizer.from_str(load(vocab).tokenizer_json())
    lines = [line for path in text.iterdir() for line in Path(path).read_text().splitlines() if line][:200_000]
    size, start = sum(len(line.encode()) for line in lines), time.perf_counter()
    for begin in range(0, len(lines), 10_000):
        tokenizer.encode_batch(lines[begin : begin + 10_000], add_special_tokens=False)
    print(f"\nencode_batch, all cores: {size / (time.perf_counter() - start) / 1e6:.1f} MB/s")
