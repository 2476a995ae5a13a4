"""Real corpora through the real commands: the same bytes for any number of workers, and rows without padding."""

import json
import lzma
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bert_jax.cli import main
from bert_jax.corpora.store import Corpus
from bert_jax.rows.interfaces import TokenFacts
from bert_jax.rows.rows_config import RowsConfig
from bert_jax.rows.sequence_rows import SequenceRows
from bert_jax.storage import files
from bert_jax.text import tokenizer as tokenizers

Shared = Callable[[str], Path]


def unpacked(archive: Path, folder: Path) -> Path:
    with lzma.open(archive) as packed, tarfile.open(fileobj=packed) as files_of:
        files_of.extractall(folder, filter="data")
    return folder


def books(shared: Shared, folder: Path) -> list[str]:
    folder = unpacked(shared("en_books") / "en_books.tar.xz", folder)
    return ["text_files", f"--config.corpus.options.paths={folder}/**/*.md"]


def chinese(shared: Shared, folder: Path) -> list[str]:
    folder = unpacked(shared("zh_modern_prose") / "zh_modern_prose.tar.xz", folder)
    return ["text_files", f"--config.corpus.options.paths={folder}/**/*.txt", "--config.corpus.options.language=zh"]


def news(shared: Shared, folder: Path) -> list[str]:
    with zipfile.ZipFile(shared("en_bbc_news") / "bbc-fulltext.zip") as archive:
        archive.extractall(folder)
    paths = f"--config.corpus.options.paths={folder}/**/[0-9]*.txt"
    return ["text_files", paths, "--config.corpus.options.bad_text=skip"]


def wikipedia(shared: Shared, folder: Path) -> list[str]:
    pytest.importorskip("mwparserfromhell")
    return ["mediawiki", f"--config.corpus.options.paths={shared('en_wikipedia_dump_sample')}/*.bz2"]


def padding_of(rows: SequenceRows) -> float:
    """The share of padding in the rows of an epoch."""
    tokens = [
        rows.rows(np.zeros(len(part)), part)["attention_mask"].mean(axis=1)
        for part in np.array_split(np.arange(rows.rows_per_epoch), -(-rows.rows_per_epoch // 1024))
    ]
    return 1 - float(np.concatenate(tokens).mean())


@pytest.mark.heavy
@pytest.mark.parametrize("make", [books, chinese, news, wikipedia], ids=lambda make: make.__name__)
def test_a_real_corpus(
    make: Callable[[Shared, Path], list[str]], shared_data: Shared, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, *options = make(shared_data, tmp_path / "text")
    flags = ["--config=bert_base", f"--config.corpus.source={source}", *options]
    flags += [
        "--config.corpus.heldout_fraction=0.05",
        "--config.vocab.size=16000",
        "--config.corpus.part_bytes=4000000",
    ]
    vocab = tmp_path / "vocab.txt"
    assert main.run(["vocab", *flags, f"--output={vocab}"]) == 0
    stores = {}
    for workers in (1, 2, 4):
        store = tmp_path / f"store{workers}"
        own = [f"--config.vocab.path={vocab}", f"--config.corpus.num_workers={workers}", f"--output={store}"]
        assert main.run(["corpus", *flags, *own]) == 0
        stores[workers] = {path.name: files.sha256(path) for path in store.iterdir()}
    assert stores[1] == stores[2] == stores[4]
    capsys.readouterr()
    assert main.run(["inspect", f"--corpus={tmp_path / 'store1'}", f"--vocab={vocab}", "--json"]) in (0, 1)
    checks = json.loads(capsys.readouterr().out)["checks"]
    corpus, facts = Corpus(tmp_path / "store1").split("train"), TokenFacts.of(tokenizers.load(vocab))
    padding = {
        length: padding_of(SequenceRows(RowsConfig(length, packing="packed"), corpus, facts, seed=0))
        for length in (128, 512)
    }
    print(make.__name__, {name: check["status"] for name, check in checks.items()}, padding)
    assert max(padding.values()) <= 0.005
