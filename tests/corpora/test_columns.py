"""Columns: values beside the tokens, piece by piece, in the store."""

import dataclasses
import json
import os
import shutil
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from bert_jax.cli import main
from bert_jax.corpora import store
from bert_jax.corpora.columns import Column
from bert_jax.corpora.manifest import MANIFEST, DamagedError, verify
from bert_jax.corpora.mixture import Mixture
from bert_jax.corpora.store import Corpus
from bert_jax.errors import UserError
from tests.corpora.test_store import TOKENIZER, BuildConfig, build, random_source

CONFIG = BuildConfig(0.2, 16, 400, num_workers=1)


@dataclasses.dataclass(frozen=True)
class Places:
    """Gives each piece the place of its first character, so that every value says where it belongs."""

    shift: int = 0
    dtype: ClassVar[str] = "uint16"

    def identity(self):
        return {"version": 1, "shift": self.shift}

    def annotate(self, sentences, spans):
        return [(places[:, 0] + self.shift).astype(np.uint16) for places in spans]


@dataclasses.dataclass(frozen=True)
class Letters:
    """Gives each piece the code of the letter that it stands for."""

    dtype: ClassVar[str] = "uint8"

    def identity(self):
        return {"version": 1}

    def annotate(self, sentences, spans):
        return [np.array([ord(s[a]) for a, _ in places], np.uint8) for s, places in zip(sentences, spans, strict=True)]


COLUMNS = (Column("letters", "letters", Letters()), Column("places", "places", Places()))


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain") / "corpus"
    build(random_source(), TOKENIZER, folder, CONFIG)
    return folder


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("built") / "corpus"
    build(random_source(), TOKENIZER, folder, CONFIG, columns=COLUMNS)
    return folder


@pytest.fixture
def folder(built, tmp_path):
    return Path(shutil.copytree(built, tmp_path / "corpus"))


def whole(split, column):
    return split.read(np.zeros(1, np.int64), np.array([split.num_tokens]), column)


# ---- the store ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cache_bytes", [1, 100, 1 << 20])
def test_each_token_has_its_value_wherever_a_span_begins(built, cache_bytes):
    for name in ("train", "heldout"):
        split = Corpus(built, cache_bytes).split(name)
        letters = [TOKENIZER.vocab[i] for i in whole(split, "tokens")]
        assert [chr(value) for value in whole(split, "letters")] == letters
        within = np.concatenate([np.arange(n) for n in split.sentence_lengths()])
        np.testing.assert_array_equal(whole(split, "places"), 2 * within)
        rng = np.random.default_rng(1)
        lengths = rng.integers(0, 40, 50)
        starts = rng.integers(0, split.num_tokens - lengths + 1)
        expected = np.concatenate([whole(split, "places")[a : a + n] for a, n in zip(starts, lengths, strict=True)])
        found = split.read(starts, lengths, "places")
        assert found.dtype == np.int32
        np.testing.assert_array_equal(found, expected)


def test_columns_leave_all_else_as_it_is(plain, built):
    old, new = (json.loads((folder / MANIFEST).read_text()) for folder in (plain, built))
    assert old["columns"] == {}
    beside = {name for name in new["files"] if name.startswith("columns/")}
    assert beside == {
        f"columns/{c.name}/{shard}" for c in COLUMNS for shard in old["files"] if "array_record-" in shard
    }
    assert {name: facts for name, facts in new["files"].items() if name not in beside} == old["files"]
    assert new["splits"] == old["splits"]
    assert {key for key in new if new[key] != old.get(key)} == {"columns", "files", "fingerprint", "sha256"}


def test_the_fingerprint_is_that_of_tokens_columns_and_annotators(tmp_path, built):
    seen = {Corpus(built).fingerprint}
    for number, made in enumerate([COLUMNS[:1], (COLUMNS[0], Column("places", "places", Places(1)))]):
        seen.add(build(random_source(), TOKENIZER, tmp_path / str(number), CONFIG, columns=made)["fingerprint"])
    assert len(seen) == 3
    again = build(random_source(), TOKENIZER, tmp_path / "again", CONFIG, columns=COLUMNS)
    assert again["fingerprint"] == Corpus(built).fingerprint
    assert again["files"] == Corpus(built).manifest["files"]  # byte for byte


def test_a_cut_build_goes_on_with_the_columns_it_was_begun_with(tmp_path, monkeypatch, built):
    calls = []
    real = Places.annotate

    def cut(self, sentences, spans):
        calls.append(len(sentences))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(self, sentences, spans)

    monkeypatch.setattr(Places, "annotate", cut)
    with pytest.raises(KeyboardInterrupt):
        build(random_source(), TOKENIZER, tmp_path / "cut", CONFIG, columns=COLUMNS)
    made = build(random_source(), TOKENIZER, tmp_path / "cut", CONFIG, columns=COLUMNS)
    assert made["files"] == Corpus(built).manifest["files"]
    parts = len(made["splits"]["train"]["shards"])
    assert len(calls) == parts + 1  # the third part alone was made twice


def test_an_object_store(tmp_path, monkeypatch, built):
    monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path))
    url = f"memory://columns-{os.getpid()}/corpus"
    build(random_source(), TOKENIZER, url, CONFIG, columns=COLUMNS)
    assert not [finding for _, finding in verify(url) if finding]
    corpus = Corpus(url)
    assert corpus.fingerprint == Corpus(built).fingerprint
    split = Corpus(url).split("train")
    np.testing.assert_array_equal(whole(split, "places"), whole(Corpus(built).split("train"), "places"))


def test_an_annotator_that_gives_another_number_of_values_is_found(monkeypatch, tmp_path):
    monkeypatch.setattr(Places, "annotate", lambda self, sentences, spans: [np.zeros(1, np.uint16) for _ in spans])
    with pytest.raises(TypeError, match="'places' must give an array of uint16, a value a piece"):
        build(random_source(), TOKENIZER, tmp_path / "corpus", CONFIG, columns=COLUMNS)


# ---- damage -------------------------------------------------------------------------------------------------------


def column_shard(folder: Path, column: str, number: int = 0) -> Path:
    return sorted((folder / "columns" / column).glob("*train*"))[number]


def test_damage_is_found_as_in_shards_of_tokens(folder, capsys, monkeypatch):
    monkeypatch.setattr(store, "DIGESTED_BYTES", 0)  # as if it were large
    shard = column_shard(folder, "places")
    data = bytearray(shard.read_bytes())
    data[600] ^= 1
    shard.write_bytes(data)
    split = Corpus(folder).split("train")
    assert len(whole(split, "tokens")) == len(whole(split, "letters"))
    with pytest.raises(DamagedError, match=f"columns/places/{shard.name} is damaged .*; `bert-jax corpus --verify"):
        whole(split, "places")
    assert main.run(["corpus", f"--verify={folder}"]) == 1
    assert f"{shard} is damaged: its sha256 is not that of the manifest\n" in capsys.readouterr().out
    shard.write_bytes(data[:-1])
    with pytest.raises(DamagedError, match=f"columns/places/{shard.name} is damaged: it has"):
        Corpus(folder)
    shutil.rmtree(folder / "columns" / "places")
    with pytest.raises(DamagedError, match=r"columns/places/.* is missing"):
        Corpus(folder)


def test_the_shard_of_another_column_is_an_error(folder, monkeypatch):
    monkeypatch.setattr(store, "DIGESTED_BYTES", 0)
    shard = column_shard(folder, "letters")
    assert shard.stat().st_size == column_shard(folder, "places").stat().st_size  # they are padded
    os.replace(shard, column_shard(folder, "places"))
    shard.write_bytes(column_shard(folder, "places").read_bytes())
    split = Corpus(folder).split("train")
    assert len(whole(split, "letters")) == split.num_tokens
    with pytest.raises(DamagedError, match="columns/places/.* is damaged .*is of another length"):
        whole(split, "places")


def test_a_column_that_is_not_there_is_one_line_with_the_command(plain, built):
    line = r"has no column 'words' \(it has none\); build it with the column: .*bert-jax corpus --config=RECIPE .*"
    line += r"--config.corpus.columns=\"\{'words': \{'annotator': 'NAME'\}\}\", where NAME is .*lexicon, .*segmenter"
    with pytest.raises(UserError, match=line) as found:
        Corpus(plain).split("train").read(np.zeros(1, np.int64), np.ones(1, np.int64), "words")
    assert "\n" not in str(found.value)
    with pytest.raises(UserError, match=r"has no column 'words' \(it has letters, places\)"):
        Corpus(built).check_columns(["letters", "words"])
    mixture = Mixture({"a": Corpus(built), "b": Corpus(plain)}, {"a": 0.5, "b": 0.5})
    with pytest.raises(UserError, match=f"{plain} has no column 'letters'"):
        mixture.check_columns(["letters"])
    Mixture.alone(Corpus(built)).check_columns(["letters", "places"])
