import itertools
from pathlib import Path

import numpy as np
import pytest

from bert_jax.corpora.store import Corpus
from bert_jax.inspection import hashing
from bert_jax.inspection.scan import scan
from tests.inspection.corpora import build, texts, write_vocab


def test_a_hash_tells_order_and_place_and_nothing_else() -> None:
    table = hashing.token_table(10)
    runs = [run for n in range(1, 5) for run in itertools.product(range(4), repeat=n)]
    tokens, lengths = np.concatenate([np.array(run) for run in runs]), np.array(list(map(len, runs)))
    hashes = hashing.with_length(hashing.sequence_hashes(table[tokens], lengths), lengths)
    assert len(set(hashes.tolist())) == len(runs)
    assert hashing.length_of(hashes).tolist() == lengths.tolist()
    shuffled = np.random.default_rng(0).permutation(len(runs))
    again = np.concatenate([np.array(runs[i]) for i in shuffled])
    np.testing.assert_array_equal(
        hashing.with_length(hashing.sequence_hashes(table[again], lengths[shuffled]), lengths[shuffled]),
        hashes[shuffled],
    )


@pytest.mark.parametrize("at_once", [1, 100, 10**6])
def test_parts_hold_everything_once_and_equal_hashes_together(at_once: int) -> None:
    rng = np.random.default_rng(1)
    pool = rng.integers(0, 2**64, 500, np.uint64)
    arrays = [rng.choice(pool, 3000), rng.choice(pool, 200), np.zeros(0, np.uint64)]
    parts = list(hashing.sorted_slices(arrays, at_once))
    assert len(parts) * at_once >= 3200
    for array, columns in zip(arrays, zip(*parts, strict=True), strict=True):
        np.testing.assert_array_equal(np.concatenate(columns), np.sort(array))


def test_a_scan_does_not_depend_on_how_much_is_read_at_once(tmp_path: Path) -> None:
    vocab = write_vocab(tmp_path / "vocab.txt")
    corpus = Corpus(build(tmp_path, texts(30), vocab), cache_bytes=1)  # block by block
    whole, pieces = (scan(corpus.split("train"), 700, 5, _new(tmp_path / str(n)), n) for n in (1 << 20, 37))
    for name in ("sentence_hashes", "document_hashes", "token_counts", "unknown"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(pieces, name))
    assert whole.token_counts.sum() == corpus.split("train").num_tokens
    assert whole.unknown.sum() == whole.token_counts[5] > 0


def _new(folder: Path) -> Path:
    folder.mkdir()
    return folder
