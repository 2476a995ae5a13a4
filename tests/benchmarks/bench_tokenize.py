"""MB/s of tokenizers on one core, and seconds to learn a vocabulary, beside the plain library in the same run.

On ``../shared/data/en_books`` where it is there, else on the docstrings of installed packages, again and again up to
some MB. Processor time is printed beside wall time, for machines that do other work too.
"""

import os
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ["RAYON_NUM_THREADS"] = "1"  # of the library: one core, as in a worker of a build

import pytest
import tokenizers

from bert_jax.corpora.docstrings import Source
from bert_jax.corpora.source import documents
from bert_jax.text.learn import count_words, learn_from_counts
from bert_jax.text.learn_byte_bpe import learn_byte_bpe
from bert_jax.text.learn_sentencepiece import learn_sentencepiece
from bert_jax.text.tokenizer import Tokenizer, sentencepiece, wordpiece
from tests.toy import learn_wordpiece

BOOKS = Path(__file__).resolve().parents[3] / "shared" / "data" / "en_books" / "en_books.tar.xz"
ENCODED_MB = 15


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """Lines, none empty."""
    if not BOOKS.exists():
        return [s for d in documents(Source(("stdlib", "numpy", "jax", "scipy"))) for s in d.sentences]
    with tarfile.open(BOOKS) as archive:
        files = [archive.extractfile(member) for member in archive if member.isfile()]
        whole = [file.read().decode("utf-8", "ignore") for file in files if file]
    return [line for text in whole for line in text.splitlines() if line.strip()]


def megabytes(texts: list[str]) -> float:
    return sum(len(text.encode()) for text in texts) / 1e6


@pytest.fixture(scope="module")
def some(texts) -> list[str]:
    """About ``ENCODED_MB`` from everywhere in the text."""
    return texts[:: max(1, round(megabytes(texts) / ENCODED_MB))]


@pytest.fixture(scope="module")
def learned(some) -> Tokenizer:
    return wordpiece(learn_wordpiece(some, 30_000))


def rate(name: str, encode: Callable[[list[str]], object], texts: list[str]) -> float:
    """Return MB/s of processor time, and print it beside MB/s by the clock."""
    wall, processor = time.perf_counter(), time.process_time()
    for i in range(0, len(texts), 8192):
        encode(texts[i : i + 8192])
    wall, processor, size = time.perf_counter() - wall, time.process_time() - processor, megabytes(texts)
    print(f"\n{name}: {size / processor:.1f} MB/s of a core ({size / wall:.1f} MB/s by the wall, {size:.0f} MB)")
    return size / processor


def test_wordpiece(learned, some):
    plain = tokenizers.Tokenizer.from_str(learned.tokenizer_json())
    library = rate("tokenizers, encode_batch_fast", plain.encode_batch_fast, some[::4])
    cold = rate("ours, every word new at first", learned.encode_batch, some)
    warm = rate("ours, warm", learned.encode_batch, some)
    print(f"ratio to tokenizers: {cold / library:.1f} from the start, {warm / library:.1f} warm")


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_sentencepiece(some, kind):
    tokenizer = sentencepiece(learn_sentencepiece(some, 30_000, kind, max_sentences=20_000))
    plain = tokenizers.Tokenizer.from_str(tokenizer.tokenizer_json())
    library = rate(f"tokenizers, {kind}", plain.encode_batch_fast, some[::4])
    ours = rate(f"sentencepiece, {kind}", tokenizer.encode_batch, some)
    print(f"ratio to tokenizers: {ours / library:.1f}")


def test_byte_bpe(some):
    tokenizer = learn_byte_bpe(some, 30_000, max_sentences=50_000)
    plain = tokenizers.Tokenizer.from_str(tokenizer.tokenizer_json())
    library = rate("tokenizers, byte-level BPE", plain.encode_batch_fast, some[::4])
    cold = rate("ours, every word new at first", tokenizer.encode_batch, some)
    warm = rate("ours, warm", tokenizer.encode_batch, some)
    print(f"ratio to tokenizers: {cold / library:.1f} from the start, {warm / library:.1f} warm")


def seconds(name: str, function: Callable[[], object]) -> object:
    wall, processor = time.perf_counter(), time.process_time()
    result = function()
    print(f"\n{name}: {time.perf_counter() - wall:.1f} s ({time.process_time() - processor:.1f} s of a core)")
    return result


def test_learning_wordpiece(texts):
    print(f"\n{megabytes(texts):.0f} MB")
    words = seconds("words counted", lambda: count_words(texts))
    vocab = seconds("30,000 pieces learned from the counts", lambda: learn_from_counts(words, 30_000))
    assert len(vocab) == 30_000


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_learning_sentencepiece(texts, kind):
    model = seconds(
        f"30,000 pieces of {kind} from {len(texts):,} texts", lambda: learn_sentencepiece(texts, 30_000, kind)
    )
    assert sentencepiece(model).size == 30_000


def test_learning_byte_bpe(texts):
    tokenizer = seconds(f"30,000 pieces of byte_bpe from {len(texts):,} texts", lambda: learn_byte_bpe(texts, 30_000))
    assert tokenizer.size > 20_000
