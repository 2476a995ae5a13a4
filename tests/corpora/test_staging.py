"""A corpus on an object store: copied once and checked, or shard by shard where the disk is small."""

import json
import pickle
import shutil
import uuid
from collections import namedtuple

import numpy as np
import pytest

from bert_jax.corpora import staging
from bert_jax.corpora.manifest import MANIFEST
from bert_jax.corpora.store import Corpus
from bert_jax.errors import UserError
from bert_jax.storage import files
from tests.corpora.test_store import TOKENIZER, BuildConfig, build, random_source

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def url(tmp_path, monkeypatch):
    monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path / "cache"))
    url = f"memory://bucket-{uuid.uuid4().hex}/corpus"
    build(random_source(), TOKENIZER, url, BuildConfig(0.2, 16, 400, num_workers=1))
    return url


@pytest.fixture
def small_disk(monkeypatch, tmp_path):
    """A disk with space for three shards."""
    space = {"bytes": 0}

    def usage(folder):
        used = sum(path.stat().st_size for path in folder.rglob("*") if staging.is_shard(path.name))
        return Usage(0, used, staging.SPARE_BYTES + space["bytes"] - used)

    monkeypatch.setattr(staging.shutil, "disk_usage", usage)
    return space


def shards_in(folder):
    return sorted(path.name for path in folder.iterdir() if staging.is_shard(path.name))


def everything(split):
    return split.read(np.array([0]), np.array([split.num_tokens]))


def test_it_is_copied_once_with_a_rate_line(url, monkeypatch):
    notes = []
    first = everything(Corpus(url, note=notes.append).split("train"))
    assert len(notes) == 1
    assert "MB/s" in notes[0]
    monkeypatch.setattr(files, "copy", lambda *_: pytest.fail("copied again"))
    np.testing.assert_array_equal(everything(Corpus(url, note=notes.append).split("train")), first)
    assert len(notes) == 1


def test_where_the_disk_is_small_shards_come_and_go(url, small_disk, monkeypatch):
    small_disk["bytes"] = 1 << 40
    whole = everything(Corpus(url).split("train"))
    shutil.rmtree(files.cache_directory())
    shard_bytes = {f["bytes"] for n, f in json.loads((files.as_path(url) / MANIFEST).read_text())["files"].items()
                   if staging.is_shard(n)}  # fmt: skip
    small_disk["bytes"] = 3 * max(shard_bytes)
    notes = []
    corpus = Corpus(url, cache_bytes=64, note=notes.append)
    assert "shards come as rows need them" in notes[-1]
    assert shards_in(corpus.folder) == []
    split = pickle.loads(pickle.dumps(corpus.split("train")))
    rng = np.random.default_rng(0)
    for _ in range(40):
        start = int(rng.integers(0, split.num_tokens - 10))
        np.testing.assert_array_equal(split.read(np.array([start]), np.array([10])), whole[start : start + 10])
        assert 1 <= len(shards_in(corpus.folder)) <= 3


def test_a_damaged_file_is_found(url):
    name = "train.sentence_offsets.npy"
    path = files.as_path(url) / name
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(UserError, match=f"{name} is damaged"):
        Corpus(url)


def test_a_corpus_without_its_marker_is_not_there(url):
    (files.as_path(url) / files.MARKER).unlink()
    with pytest.raises(UserError, match="has no COMMITTED marker"):
        Corpus(url)
