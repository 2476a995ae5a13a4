"""Documents that repeat an earlier document are dropped, and no other documents."""

import numpy as np

from bert_jax.corpora import duplicates
from bert_jax.corpora.build import BuildConfig, build
from bert_jax.corpora.store import Corpus
from bert_jax.records import SPECIAL_TOKENS, Document
from bert_jax.text.tokenizer import wordpiece
from tests.corpora.test_store import ListSource

WORDS = [f"{a}{b}" for a in "bcdfghjklm" for b in "aeiou"]
TOKENIZER = wordpiece((*SPECIAL_TOKENS, *WORDS))


def source_of(texts) -> ListSource:
    """Return a source of a document a text; it has two sentences."""
    halves = (((" ".join(words[:50]), " ".join(words[50:]))) for words in map(str.split, texts))
    return ListSource(tuple(Document(str(n), sentences) for n, sentences in enumerate(halves)))


def random_text(rng, length=200):
    return " ".join(rng.choice(WORDS, length))


def changed(rng, text, count):
    words = text.split()
    for at in rng.choice(len(words), count, replace=False):
        words[at] = "ZZ"
    return " ".join(words)


def first_words(corpus, count=20):
    found = []
    for name in ("train", "heldout"):
        split = corpus.split(name)
        starts = split.sentence_offsets[split.document_starts[:-1]]
        tokens = split.read(starts, np.full(len(starts), count)).reshape(-1, count)
        found += [tuple(row) for row in tokens.tolist()]
    return sorted(found)


def encoded(texts, count=20):
    return sorted(tuple(ids[:count].tolist()) for ids in TOKENIZER.encode_batch(list(texts)))


def test_planted_repetitions_go_and_all_else_stays(tmp_path):
    rng = np.random.default_rng(0)
    texts = [random_text(rng) for _ in range(30)]
    again = [texts[3], texts[3].replace(" ", "  "), texts[20], "", ""]
    alike = [changed(rng, texts[n], 2) for n in (5, 6, 7)]
    source = source_of((*texts, *again, *alike))
    config = BuildConfig(0.3, part_bytes=200, duplicates="exact", num_workers=1)
    manifest = build(source, TOKENIZER, tmp_path / "out", config)
    assert manifest["dropped"]["exact_duplicates"] == 3
    assert manifest["dropped"]["empty_documents"] == 2
    assert first_words(Corpus(tmp_path / "out")) == encoded([*texts, *alike])


def test_nothing_is_dropped_unless_asked_for(tmp_path):
    rng = np.random.default_rng(0)
    text = random_text(rng)
    manifest = build(source_of((text,) * 9), TOKENIZER, tmp_path / "out", BuildConfig(0.3, num_workers=1))
    assert sum(split["num_documents"] for split in manifest["splits"].values()) == 9


def test_random_digests_agree_with_a_set():
    rng = np.random.default_rng(2)
    digests = rng.integers(0, 30, (500, 1), np.uint64) * np.ones((1, 2), np.uint64)
    seen, expected = set(), []
    for row in digests[:, 0].tolist():
        expected.append(row in seen and row != 0)
        seen.add(row)
    np.testing.assert_array_equal(duplicates.exact_duplicates(digests), expected)
    assert not duplicates.exact_duplicates(np.zeros((0, 2), np.uint64)).any()
