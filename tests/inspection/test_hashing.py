import itertools
from pathlib import Path

import numpy as np

from bert_jax.corpora.store import Corpus
from bert_jax.inspection import hashing
from bert_jax.inspection.scan import scan
from tests.inspection.corpora import build, texts, write_vocab


def test_a_hash_tells_order_and_place_and_nothing_else() -> None:
    table = hashing.token_table(10, "test")
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


def test_a_scan_does_not_depend_on_how_much_is_read_at_once(tmp_path: Path) -> None:
    vocab = write_vocab(tmp_path / "vocab.txt")
    corpus = Corpus(build(tmp_path, texts(30), vocab), cache_bytes=1)  # block by block
    whole, pieces = (scan(corpus.split("train"), 700, 5, n) for n in (1 << 20, 37))
    for name in ("sentence_hashes", "document_hashes", "token_counts", "unknown"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(pieces, name))
    assert whole.token_counts.sum() == corpus.split("train").num_tokens
    assert whole.unknown.sum() == whole.token_counts[5] > 0
