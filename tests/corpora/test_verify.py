"""Damage of a store is found when the store is opened, as it is read, or by ``--verify``."""

import json
import os
import pickle
import shutil
import uuid
from pathlib import Path

import numpy as np
import pytest

from bert_jax.cli import main
from bert_jax.corpora import store
from bert_jax.corpora.manifest import MANIFEST, SEAL, DamagedError, seal, verify
from bert_jax.corpora.store import Corpus
from bert_jax.errors import UserError
from bert_jax.records import SPECIAL_TOKENS
from bert_jax.rows import chunks, random
from bert_jax.storage import files
from bert_jax.text.tokenizer import wordpiece
from tests.corpora.test_store import LETTERS, TOKENIZER, BuildConfig, build, random_source
from tests.rows.fakes import fake_split

SHARD = "corpus-train.array_record-00001-of-00004"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built") / "corpus"
    build(random_source(), TOKENIZER, folder, BuildConfig(0.2, 16, 400, num_workers=1))
    return folder


@pytest.fixture
def folder(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "corpus"))


def flip(path: Path, place: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def read_all(folder: Path) -> None:
    corpus = Corpus(folder)
    for split in map(corpus.split, ("train", "heldout")):
        split.read(np.zeros(1, np.int64), np.array([split.num_tokens]))


SMALL = ("heldout.sentence_offsets.npy", "train.document_starts.npy", "dataset_info.json", "features.json")


@pytest.mark.parametrize("name", SMALL)
def test_a_flipped_bit_of_a_small_file_is_found_when_the_store_is_opened(folder: Path, name: str) -> None:
    flip(folder / name)
    with pytest.raises(DamagedError, match=f"{name} is damaged: its sha256 .*; `bert-jax corpus --verify=DIR` names"):
        Corpus(folder)


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff", b'{"format": 3}', b"[" * 100_000])
def test_a_spoilt_manifest_is_named(folder: Path, data: bytes) -> None:
    (folder / MANIFEST).write_bytes(data)
    with pytest.raises(DamagedError, match=f"{MANIFEST} is damaged: it is not as it was written; "):
        Corpus(folder)


def changed(folder: Path, **values: object) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**manifest, **values}))


@pytest.mark.parametrize("key", ["fingerprint", "tokenizer_sha256", "block_tokens", "lowercase", "files", SEAL])
def test_any_other_value_in_the_manifest_is_found(folder: Path, key: str) -> None:
    changed(folder, **{key: 0})
    with pytest.raises(DamagedError, match=f"{MANIFEST} is damaged"):
        Corpus(folder)


def test_a_manifest_without_its_seal_is_damaged(folder: Path) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    assert seal(manifest) == manifest
    del manifest[SEAL]
    (folder / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(DamagedError, match=f"{MANIFEST} is damaged"):
        Corpus(folder)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every store is so large that its shards are not digested when it is opened."""
    monkeypatch.setattr(store, "DIGESTED_BYTES", 0)


def test_a_shard_of_another_store_is_found_when_a_small_one_is_opened(folder: Path, tmp_path: Path) -> None:
    letters = [*LETTERS[1::-1], *LETTERS[2:]]  # two pieces exchanged: blocks of the same lengths
    other = wordpiece((*SPECIAL_TOKENS, *letters))
    build(random_source(), other, tmp_path / "other", BuildConfig(0.2, 16, 400, num_workers=1))
    sizes = {(place / SHARD).stat().st_size for place in (folder, tmp_path / "other")}
    assert len(sizes) == 1
    shutil.copy(tmp_path / "other" / SHARD, folder / SHARD)
    with pytest.raises(DamagedError, match=f"{SHARD} is damaged: its sha256 is not that of the manifest"):
        Corpus(folder)


def test_what_is_no_file_is_not_read(folder: Path) -> None:
    for name in (SHARD, MANIFEST):
        (folder / name).unlink()
        os.mkfifo(folder / name)  # to read it would wait for ever
        with pytest.raises(DamagedError, match=f"{name} is"):
            Corpus(folder)
    assert [finding for _, finding in verify(folder)] == [f"{folder / MANIFEST} is a pipe, a socket or a device"]


@pytest.mark.usefixtures("large")
def test_a_shard_is_checked_as_it_is_read_wherever_that_is(folder: Path) -> None:
    flip(folder / SHARD, 600)
    split = Corpus(folder, cache_bytes=100).split("train")
    with pytest.raises(DamagedError, match=f"{SHARD} is damaged .*hash mismatch.*; `bert-jax corpus --verify") as found:
        split.read(np.zeros(1, np.int64), np.array([split.num_tokens]))
    assert "\n" not in str(found.value)
    assert str(pickle.loads(pickle.dumps(found.value))) == str(found.value)  # as it comes out of a worker process


@pytest.mark.usefixtures("large")
def test_another_shard_is_noticed_at_its_first_block_though_it_is_whole_and_as_long(folder: Path) -> None:
    first, second = (folder / f"corpus-train.array_record-0000{i}-of-00004" for i in (0, 1))
    blocks = json.loads((folder / MANIFEST).read_text())["splits"]["train"]["shards"]
    assert first.stat().st_size == second.stat().st_size  # they are padded
    first.rename(folder / "x")
    second.rename(first)
    (folder / "x").rename(second)
    split = Corpus(folder, cache_bytes=1).split("train")
    with pytest.raises(DamagedError, match=rf"{first.name} is damaged \((without the|block \d+ is of another length)"):
        split.read(np.zeros(1, np.int64), np.ones(1, np.int64))
    assert blocks[0]["num_tokens"] != blocks[1]["num_tokens"]


def test_a_file_is_read_through_once_in_a_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def sha256(path: Path) -> str:
        read.append(path.name)
        return digest(path)

    digest = store.files.sha256
    monkeypatch.setattr(store.files, "sha256", sha256)
    for _ in range(3):
        corpus = Corpus(folder)
        pickle.loads(pickle.dumps(corpus.split("train")))
    assert len(read) == len(set(read)) == len(corpus.manifest["files"])
    flip(folder / "train.sentence_offsets.npy")
    with pytest.raises(DamagedError):
        Corpus(folder)


def test_sentences_that_go_back_are_an_error_and_not_cut_for_ever() -> None:
    split = fake_split(20, sentences=(5, 9), mean=12)
    split.sentence_offsets[split.document_starts[3]] -= 1 << 20
    with pytest.raises(UserError, match="a sentence without tokens"):
        list(chunks.make(split, random.key("test"), chunks.Rules(64, 0.1)))


# ---- --verify -----------------------------------------------------------------------------------------------------


def test_verify_names_every_damaged_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["corpus", f"--verify={folder}"]) == 0
    count = len(json.loads((folder / MANIFEST).read_text())["files"]) + 1
    assert capsys.readouterr().out == f"{folder}: {count} files, all as they were written\n"
    flip(folder / SHARD)
    flip(folder / "features.json")
    (folder / "train.document_starts.npy").unlink()
    assert main.run(["corpus", f"--verify={folder}"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"{folder}/{SHARD} is damaged: its sha256 is not that of the manifest",
        f"{folder}/features.json is damaged: its sha256 is not that of the manifest",
        f"{folder}/train.document_starts.npy is missing",
        f"{folder}: {count} files, 3 damaged",
    ]
    flip(folder / MANIFEST)
    assert main.run(["corpus", f"--verify={folder}"]) == 1
    assert f"{folder}/{MANIFEST} is damaged: it is not as it was written\n" in capsys.readouterr().out


def test_verify_reads_all_parts_of_a_mixture(built: Path, tmp_path: Path) -> None:
    for name in ("old", "new"):
        shutil.copytree(built, tmp_path / name)
    flip(tmp_path / "old" / SHARD)
    assert [path for path, finding in verify(tmp_path) if finding] == [tmp_path / "old" / SHARD]


def test_verify_reads_an_object_store() -> None:
    url = f"memory://bucket-{uuid.uuid4().hex}/corpus"
    build(random_source(), TOKENIZER, url, BuildConfig(0.2, num_workers=1))
    assert [finding for _, finding in verify(url)] == [None] * 9
    files.as_path(f"{url}/features.json").write_text("{}")
    files.as_path(f"{url}/train.document_starts.npy").unlink()
    assert [f"{finding}" for _, finding in verify(url) if finding] == [
        f"{url}/features.json is damaged: its sha256 is not that of the manifest",
        f"{url}/train.document_starts.npy is missing",
    ]
    with pytest.raises(UserError, match="is not a corpus"):
        list(verify(f"{url}/nothing"))


@pytest.mark.parametrize("flags", [["--verify=x", "--output=y"], ["--output=y"], ["--config=bert_base"], []])
def test_to_build_and_to_verify_are_two_things(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["corpus", *flags]) == 2
    assert "--verify=DIR" in capsys.readouterr().err
