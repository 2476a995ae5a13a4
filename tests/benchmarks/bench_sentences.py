"""MB/s of sentence splitters on one text, all in one run: ours (``sentencex``) beside ``syntok`` and ``pysbd``."""

import time

import pytest

from bert_jax.corpora.docstrings import Source
from bert_jax.corpora.source import documents
from bert_jax.text.sentences import split_sentences


@pytest.fixture(scope="module")
def passages():
    """Runs of 20 sentences of the docstring corpus, joined again."""
    sentences = [s for d in documents(Source(("stdlib", "numpy"))) for s in d.sentences]
    return [" ".join(sentences[i : i + 20]) for i in range(0, len(sentences), 20)]


def syntok():
    from syntok import segmenter

    return lambda text: [s for paragraph in segmenter.analyze(text) for s in paragraph]


def pysbd():
    import pysbd as library

    return library.Segmenter(language="en", clean=False).segment


@pytest.mark.parametrize(("name", "make"), [("ours", lambda: split_sentences), ("syntok", syntok), ("pysbd", pysbd)])
def test_splitter(passages, name, make):
    split, sizes, sentences, start = make(), 0, 0, time.perf_counter()
    for text in passages:  # the slow ones see the beginning only
        sizes, sentences = sizes + len(text.encode()), sentences + len(split(text))
        if time.perf_counter() - start > 5:
            break
    seconds = time.perf_counter() - start
    print(f"\n{name}: {sizes / seconds / 1e6:.2f} MB/s, {sentences / sizes * 1e3:.2f} sentences a kB")
