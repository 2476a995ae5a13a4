"""A corpus on an object store is copied once and checked."""

import uuid
from collections import namedtuple

import numpy as np
import pytest

from bert_jax.corpora import manifest
from bert_jax.corpora.store import Corpus
from bert_jax.errors import UserError
from bert_jax.storage import files
from tests.corpora.test_store import TOKENIZER, BuildConfig, build, random_source


@pytest.fixture
def url(tmp_path, monkeypatch):
    monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path / "cache"))
    url = f"memory://bucket-{uuid.uuid4().hex}/corpus"
    build(random_source(), TOKENIZER, url, BuildConfig(0.2, 16, 400, num_workers=1))
    return url


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


def test_a_disk_that_is_too_small_is_one_line_before_anything_is_copied(url, monkeypatch):
    free = manifest.SPARE_BYTES + 1000
    monkeypatch.setattr(manifest.shutil, "disk_usage", lambda _: namedtuple("Usage", "total used free")(0, 0, free))
    monkeypatch.setattr(files, "copy", lambda *_: pytest.fail("copied"))
    with pytest.raises(UserError, match=r"needs 0.0 GB in .*staged.*, where 1.1 GB are free, .* BERT_JAX_CACHE$"):
        Corpus(url)


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
