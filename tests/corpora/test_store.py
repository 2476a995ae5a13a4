"""The build of a corpus and the store that reads it."""

import dataclasses
import errno
import hashlib
import json
import os
import pickle
import re
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from bert_jax.corpora import shard_job
from bert_jax.corpora.build import BuildConfig, build
from bert_jax.corpora.manifest import seal
from bert_jax.corpora.mixture import Mixture
from bert_jax.corpora.shard_job import tokenize
from bert_jax.corpora.source import Piece, Skipped
from bert_jax.corpora.store import Corpus, record_header
from bert_jax.errors import UserError
from bert_jax.records import SPECIAL_TOKENS, Document
from bert_jax.storage import files
from bert_jax.text.tokenizer import wordpiece

LETTERS = "abcdefghij"
TOKENIZER = wordpiece((*SPECIAL_TOKENS, *LETTERS))


@dataclasses.dataclass(frozen=True)
class ListSource:
    items: tuple[Document, ...]

    def pieces(self) -> list[Piece]:
        """Return pieces of four documents and 100 bytes each."""
        return [Piece("list", start, start + 4, 100) for start in range(0, len(self.items), 4)]

    def read(self, piece: Piece) -> Iterator[Document | Skipped]:
        yield from self.items[piece.start : piece.stop]

    def fingerprint(self) -> str:
        return hashlib.sha256(repr(self.items).encode()).hexdigest()

    def describe(self) -> dict[str, Any]:
        return {"source": "list"}


def random_source(count: int = 60, seed: int = 0) -> ListSource:
    rng = np.random.default_rng(seed)

    def sentence() -> str:
        return " ".join(rng.choice(list(LETTERS), rng.integers(1, 12)))

    return ListSource(
        tuple(Document(f"doc{i}", tuple(sentence() for _ in range(rng.integers(1, 9)))) for i in range(count))
    )


@pytest.fixture(scope="module")
def source() -> ListSource:
    return random_source()


@pytest.fixture(scope="module")
def folder(source, tmp_path_factory):
    output = tmp_path_factory.mktemp("corpora") / "corpus"
    build(source, TOKENIZER, output, BuildConfig(0.2, 16, 400, num_workers=1))
    return output


def stored_documents(corpus: Corpus, split: str) -> list[list[list[int]]]:
    part = corpus.split(split)
    tokens = part.read(np.array([0]), np.array([part.num_tokens]))
    offsets = part.sentence_offsets
    sentences = [tokens[a:b].tolist() for a, b in zip(offsets, offsets[1:], strict=False)]
    starts = part.document_starts
    return [sentences[a:b] for a, b in zip(starts, starts[1:], strict=False)]


def test_every_document_comes_back_once_and_in_order(source, folder):
    expected = [[s.tolist() for s in TOKENIZER.encode_batch(d.sentences)] for d in source.items]
    corpus = Corpus(folder)
    train, heldout = (stored_documents(corpus, split) for split in ("train", "heldout"))
    assert train == [d for d in expected if d in train]
    assert heldout == [d for d in expected if d in heldout]
    assert len(train) + len(heldout) == len(expected)
    assert 0 < len(heldout) < len(train)


def test_counts_and_lengths_agree(folder):
    corpus = Corpus(folder)
    for name in ("train", "heldout"):
        split = corpus.split(name)
        assert split.sentence_offsets.dtype == split.document_starts.dtype == np.int64
        assert len(split.sentence_offsets) == split.num_sentences + 1
        assert split.sentence_offsets[-1] == split.num_tokens == split.sentence_lengths().sum()
        assert len(split.document_starts) == split.num_documents + 1
        assert split.document_starts[-1] == split.num_sentences
        assert split.sentence_lengths().min() > 0
        assert isinstance(split.sentence_offsets, np.memmap)
        assert split.num_words == split.num_tokens  # every word of this text is a piece


@pytest.mark.parametrize("cache_bytes", [1, 100, 1 << 20])
def test_random_spans_are_slices_of_the_whole(folder, cache_bytes):
    split = Corpus(folder, cache_bytes).split("train")
    whole = Corpus(folder).split("train").read(np.array([0]), np.array([split.num_tokens]))
    rng = np.random.default_rng(1)
    for longest in (3, 17, 100):
        lengths = rng.integers(0, longest, 200)
        starts = rng.integers(0, split.num_tokens - lengths + 1)
        expected = np.concatenate([whole[a : a + n] for a, n in zip(starts, lengths, strict=True)])
        read = split.read(starts, lengths)
        assert read.dtype == np.int32
        np.testing.assert_array_equal(read, expected)
    assert split.read(np.zeros(0, np.int64), np.zeros(0, np.int64)).shape == (0,)


def test_cache_of_blocks_is_bounded(folder):
    split = Corpus(folder, cache_bytes=5 * 16 * 2).split("train")
    for start in range(0, split.num_tokens - 8, 7):
        split.read(np.array([start]), np.array([8]))
        assert len(split._blocks["tokens"]._cache) <= 5


def test_split_is_shared_by_threads_and_pickles_small(folder):
    split = Corpus(folder, cache_bytes=200).split("train")
    starts = np.random.default_rng(2).integers(0, split.num_tokens - 20, 300)
    expected = split.read(starts, np.full(300, 20))
    with ThreadPoolExecutor(4) as pool:
        for result in pool.map(lambda _: split.read(starts, np.full(300, 20)), range(20)):
            np.testing.assert_array_equal(result, expected)
    pickled = pickle.dumps(split)
    assert len(pickled) < 1000
    np.testing.assert_array_equal(pickle.loads(pickled).read(starts, np.full(300, 20)), expected)


def test_tfds_reads_the_same_tokens_without_tensorflow(folder):
    import tensorflow_datasets as tfds

    data = tfds.builder_from_directory(folder).as_data_source()
    assert set(data) == {"train", "heldout"}
    for name in data:
        split = Corpus(folder).split(name)
        blocks = [example["tokens"] for example in data[name]]
        assert {len(b) for b in blocks} == {*range(1, 17)} & {len(b) for b in blocks}
        assert blocks[0].dtype == np.uint16
        np.testing.assert_array_equal(np.concatenate(blocks), split.read(np.array([0]), np.array([split.num_tokens])))
    assert "tensorflow" not in sys.modules


@pytest.mark.parametrize("size", [0, 1, 127, 128, 8192, 1 << 21])
def test_record_is_the_example_that_tfds_would_write(size):
    import tensorflow_datasets as tfds

    features = tfds.features.FeaturesDict(
        {"tokens": tfds.features.Tensor(shape=(None,), dtype=np.uint8, encoding=tfds.features.Encoding.BYTES)}
    )
    payload = np.arange(size, dtype=np.uint8)
    assert record_header(size) + payload.tobytes() == features.serialize_example({"tokens": payload})


def test_many_shards_and_four_byte_tokens(source, tmp_path):
    vocab = (*SPECIAL_TOKENS, *(f"[unused{i}]" for i in range(70_000)), *LETTERS)
    manifest = build(source, wordpiece(vocab), tmp_path / "corpus", BuildConfig(0.2, 16, 400, num_workers=1))
    assert manifest["dtype"] == "uint32"
    assert len(manifest["splits"]["train"]["shards"]) == 4
    corpus = Corpus(tmp_path / "corpus", cache_bytes=300)
    split = corpus.split("train")
    tokens = split.read(np.array([0]), np.array([split.num_tokens]))
    assert tokens.min() >= 70_005
    import tensorflow_datasets as tfds

    blocks = [e["tokens"] for e in tfds.builder_from_directory(tmp_path / "corpus").as_data_source("train")]
    np.testing.assert_array_equal(np.concatenate(blocks), tokens)


def test_manifest_says_what_was_built_and_dropped(tmp_path):
    odd = (Document("empty", ()), Document("blank", (" ", "\u200b")), Document("half", ("", "a b", "c")))
    seen = []
    manifest = build(
        ListSource(odd + random_source().items),
        TOKENIZER,
        tmp_path / "corpus",
        BuildConfig(0.2),
        progress=lambda *counts: seen.append(counts),
    )
    assert manifest["dropped"] == {"empty_sentences": 3, "empty_documents": 2}
    assert manifest["tokenizer_sha256"] == TOKENIZER.sha256
    assert manifest["vocab_size"] == TOKENIZER.size
    assert manifest["source"] == {"source": "list"}
    assert "python" in manifest["versions"]
    for name, facts in manifest["files"].items():
        assert files.sha256(tmp_path / "corpus" / name) == facts["sha256"]
    listed = {*manifest["files"], "manifest.json"}
    assert listed == set(os.listdir(tmp_path / "corpus"))
    assert json.loads((tmp_path / "corpus" / "manifest.json").read_text()) == json.loads(json.dumps(manifest))
    assert seen[-1] == (63, manifest["text_bytes"], sum(s["num_tokens"] for s in manifest["splits"].values()))


def test_words_of_an_epoch(folder, tmp_path):
    """White space cuts words. Of two corpora that share a mixture, the share of the tokens counts."""
    dense = ListSource(tuple(Document(f"doc{i}", ("ab cd.", f"a {'b' * i}.")) for i in range(1, 40)))
    build(dense, TOKENIZER, tmp_path / "dense", BuildConfig(0.2, 16, 400, num_workers=1))
    one, other = Corpus(folder), Corpus(tmp_path / "dense")
    tokens, more = (corpus.split("train").num_tokens for corpus in (one, other))
    rate = other.split("train").num_words / more
    assert other.split("train").num_words == 4 * other.split("train").num_documents
    assert Mixture.alone(one).words_of_epoch(None) == pytest.approx(tokens)
    both = Mixture({"one": one, "other": other}, {"one": 0.25, "other": 0.75})
    assert both.words_of_epoch(None) == pytest.approx((0.25 + 0.75 * rate) * (tokens + more))
    assert both.words_of_epoch({"one": 2, "other": 2}) == pytest.approx((0.5 + 0.5 * rate) * (tokens + more))
    assert both.words_of_epoch({"one": 0, "other": 2}) == pytest.approx(other.split("train").num_words)


def test_a_corpus_whose_words_were_not_counted_says_so(folder, tmp_path):
    """Earlier builds did not count them, and all else of such a store is read as before."""
    shutil.copytree(folder, tmp_path / "old")
    manifest = json.loads((tmp_path / "old" / "manifest.json").read_text())
    for split in manifest["splits"].values():
        del split["num_words"]
    (tmp_path / "old" / "manifest.json").write_text(json.dumps(seal(manifest)))
    with pytest.raises(UserError, match="built by a version that did not count them; build it again, or give tokens"):
        Mixture.alone(Corpus(tmp_path / "old")).words_of_epoch(None)


def test_repetition_changes_nothing(source, folder, tmp_path):
    first = Corpus(folder).manifest
    again = build(source, TOKENIZER, tmp_path / "a", BuildConfig(0.2, 16, 400, num_workers=1))
    assert again["fingerprint"] == first["fingerprint"]
    assert again["files"] == first["files"]  # byte for byte
    other = build(random_source(seed=1), TOKENIZER, tmp_path / "b", BuildConfig(0.2, 16, 400, num_workers=1))
    assert other["fingerprint"] != first["fingerprint"]


def test_blocks_are_no_part_of_the_content(source, folder, tmp_path):
    other = build(source, TOKENIZER, tmp_path / "a", BuildConfig(0.2, 100, 400, num_workers=1))
    assert other["fingerprint"] == Corpus(folder).fingerprint


def test_held_out_documents_do_not_depend_on_the_others(source, folder, tmp_path):
    heldout = stored_documents(Corpus(folder), "heldout")
    build(ListSource(source.items[::-1][:40]), TOKENIZER, tmp_path / "part", BuildConfig(0.2))
    part = stored_documents(Corpus(tmp_path / "part"), "heldout")
    assert part
    assert all(document in heldout for document in part)


def test_held_out_rate():
    documents = [Document(f"d{i}", ("a b",)) for i in range(20_000)]
    draws = np.array([t.heldout_draw for t in tokenize(documents, TOKENIZER)])
    rate = (draws < 0.05).mean()
    assert abs(rate - 0.05) < 4 * np.sqrt(0.05 * 0.95 / len(draws))


FIVE = tuple(Document(f"d{i}", ("a b", "c d")) for i in range(5))


@pytest.mark.parametrize(
    ("documents", "fraction", "message"),
    [
        ((), 0.5, "the corpus is empty"),
        ((Document("d", (" ",)),), 0.5, "the corpus is empty"),
        (FIVE[:1], 0.5, "the corpus has 1 document with text; at least 4"),
        (FIVE[:3], 0.5, "the corpus has 3 documents with text; at least 4"),
        (FIVE, 1e-9, "puts 0 of them into the split 'heldout', which needs 2: cut files"),
        (FIVE, 1 - 1e-9, "puts 0 of them into the split 'train', which needs 2: cut files"),
        (FIVE, 0.0, "heldout_fraction is 0.0; a number between 0 and 1"),
    ],
)
def test_corpora_that_cannot_serve_are_refused_and_leave_nothing(tmp_path, documents, fraction, message):
    with pytest.raises(UserError, match=message):
        build(ListSource(tuple(documents)), TOKENIZER, tmp_path / "corpus", BuildConfig(fraction))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("count", [4, 5, 12, 40])
@pytest.mark.parametrize("fraction", [1e-9, 1 - 1e-9])
def test_the_fraction_that_an_error_names_serves(tmp_path, count, fraction):
    source = ListSource(tuple(Document(f"d{i}", ("a b", "c d")) for i in range(count)))
    with pytest.raises(UserError) as error:
        build(source, TOKENIZER, tmp_path / "corpus", BuildConfig(fraction))
    named = float(re.search(r"heldout_fraction=([\d.]+)$", str(error.value))[1])
    splits = build(source, TOKENIZER, tmp_path / "corpus", BuildConfig(named))["splits"]
    small, large = ("heldout", "train") if fraction < 0.5 else ("train", "heldout")
    assert splits[small]["num_documents"] == 2
    assert splits[large]["num_documents"] == count - 2


@pytest.mark.parametrize(
    ("number", "advice"), [(errno.ENOSPC, "free some"), (errno.EFBIG, "raise the limit on the size of a file")]
)
def test_full_disk_leaves_nothing(source, tmp_path, monkeypatch, number, advice):
    class FullWriter:
        def __init__(self, path: str, _options: str) -> None:
            self.path = path

        def write(self, _record: bytes) -> None:
            raise RuntimeError(f"write() failed: {os.strerror(number)}; writing {self.path}; at byte 4096")

    monkeypatch.setattr(shard_job, "ArrayRecordWriter", FullWriter)
    with pytest.raises(
        UserError, match=rf"cannot write .*corpus.partial: write\(\) failed: {os.strerror(number)}; {advice}"
    ):
        build(source, TOKENIZER, tmp_path / "corpus", BuildConfig(0.2, 16, 400, num_workers=1))
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.partial"]  # finished parts, for the next try
    monkeypatch.undo()
    assert build(source, TOKENIZER, tmp_path / "corpus", BuildConfig(0.2, 16, 400, num_workers=1))["documents"] == 60
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]


def test_a_failing_source_leaves_nothing(tmp_path):
    class Failing(ListSource):
        def read(self, piece: Piece) -> Iterator[Document | Skipped]:
            yield from super().read(piece)
            raise UserError("bad file")

    with pytest.raises(UserError, match="bad file"):
        build(Failing(FIVE), TOKENIZER, tmp_path / "corpus")
    assert list(tmp_path.iterdir()) == []


def test_wrong_folders_vocabularies_and_splits_are_explained(folder, tmp_path):
    with pytest.raises(UserError, match="is not a corpus"):
        Corpus(tmp_path)
    with pytest.raises(UserError, match="is not a corpus"):
        Corpus(tmp_path / "nothing")
    corpus = Corpus(folder)
    corpus.check_tokenizer(TOKENIZER)
    with pytest.raises(UserError, match="made with another vocabulary"):
        corpus.check_tokenizer(wordpiece(TOKENIZER.vocab, lowercase=False))
    with pytest.raises(UserError, match="unknown split 'test'"):
        corpus.split("test")


@pytest.mark.parametrize("name", ["corpus-train.array_record-00000-of-00001", "train.sentence_offsets.npy"])
def test_cut_and_missing_files_are_found_when_opened(source, tmp_path, name):
    build(source, TOKENIZER, tmp_path / "corpus", BuildConfig(0.2))
    path = tmp_path / "corpus" / name
    size = path.stat().st_size
    os.truncate(path, size - 1)
    with pytest.raises(UserError, match=f"{name} is damaged: it has {size - 1:,} bytes, the manifest says {size:,}"):
        Corpus(tmp_path / "corpus")
    path.unlink()
    with pytest.raises(UserError, match=f"{name} is missing; .*corpus --verify=DIR"):
        Corpus(tmp_path / "corpus")
