"""Rows: tokens/s out of the loader, padding, seconds to plan a million pairs and to take up a run far along.

On the docstring corpus of the installed packages, and on the corpus in ``$BERT_JAX_BENCH_CORPUS`` if that is set. The
aims: 3 M tokens/s packed at 512 on 2 cores, padding 0.5 %, 3 s a million pairs, 2 s to seek among a million documents.
"""

import os
import resource
import time
from pathlib import Path

import numpy as np
import pytest

from bert_jax.corpora.docstrings import Source
from bert_jax.corpora.source import documents
from bert_jax.corpora.store import Corpus, CorpusSplit
from bert_jax.parts import catalogue
from bert_jax.records import SPECIAL_TOKENS
from bert_jax.rows import random
from bert_jax.rows.interfaces import TokenFacts
from bert_jax.rows.loader import Loader, LoaderConfig
from bert_jax.rows.masking import MaskingConfig
from bert_jax.rows.phases import Phase, Phases
from bert_jax.rows.rows_config import RowsConfig
from bert_jax.rows.sequence_rows import SequenceRows
from bert_jax.text.tokenizer import wordpiece

FACTS = TokenFacts(pad=0, cls=2, sep=3, mask=4, vocab_size=8192)


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    """Name -> folder."""

    from bert_jax.corpora.build import build
    from tests.toy import learn_wordpiece

    folder = tmp_path_factory.mktemp("rows")
    source = Source(("stdlib", "numpy", "jax", "pytest"))
    pieces = learn_wordpiece((s for d in documents(source) for s in d.sentences), 8192)
    assert pieces[: len(SPECIAL_TOKENS)] == SPECIAL_TOKENS
    build(source, wordpiece(pieces), folder / "docstrings")
    found = {"docstrings": folder / "docstrings"}
    if "BERT_JAX_BENCH_CORPUS" in os.environ:
        found["$BERT_JAX_BENCH_CORPUS"] = Path(os.environ["BERT_JAX_BENCH_CORPUS"])
    return found


def rows_of(split, max_length, packing, folder):
    return SequenceRows(RowsConfig(max_length, packing=packing), split, FACTS, seed=0, directory=folder)


@pytest.mark.parametrize("max_length", [128, 512])
def test_padding(corpora, max_length, tmp_path):
    for name, folder in corpora.items():
        shares = {}
        for packing in ("none", "packed"):
            rows = rows_of(Corpus(folder).split("train"), max_length, packing, tmp_path)
            dealt = rows._plans.load(0)["sequences"]
            tokens = int(dealt["a_length"].sum() + dealt["b_length"].sum()) + 3 * len(dealt)
            shares[packing] = 1 - tokens / (rows.rows_per_epoch * max_length)
        print(f"\n{name} {max_length}: padding {shares['none']:.2%} unpacked, {shares['packed']:.3%} packed")


@pytest.mark.parametrize("cache", ["whole", "a twentieth"])
@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("max_length", [128, 512])
def test_loader(corpora, max_length, workers, cache, tmp_path):
    steps = 60
    for name, folder in corpora.items():
        whole = Corpus(folder).split("train")
        cache_bytes = whole.num_tokens * (4 if cache == "whole" else 0.1)
        config = RowsConfig(max_length, packing="packed", kind="a")

        def source(split, kind, phase, folder=folder, cache_bytes=cache_bytes, config=config):
            split = CorpusSplit(folder, "train", int(cache_bytes))
            return SequenceRows(config, split, FACTS, seed=0, directory=tmp_path)

        phases = Phases((Phase(steps * 100, 32 * 1024 // max_length, max_length, "a"),))
        loader = Loader(source, phases, 0, config.batch_specs, LoaderConfig(workers))
        batches, tokens, begin = iter(loader), 0, 0.0
        for done in range(steps + 10):
            if done == 10:  # the workers have started
                tokens, begin = 0, time.perf_counter()
            tokens += int(next(batches)[1]["attention_mask"].sum())
        rate = tokens / (time.perf_counter() - begin)
        batches.close()
        print(f"\n{name} {max_length}, {workers} workers, cache {cache}: {rate / 1e6:.1f} M tokens/s")


class LargeSplit:
    """A million documents, without their tokens."""

    fingerprint = "large"

    def __init__(self, folder):
        self.document_starts = np.load(folder / "documents.npy", mmap_mode="r")
        self.sentence_offsets = np.load(folder / "sentences.npy", mmap_mode="r")

    def read(self, starts, lengths):
        return np.full(int(lengths.sum()), 7, np.int32)


@pytest.mark.parametrize("max_length", [128, 512])
def test_a_million_documents(max_length, tmp_path):
    rng = np.random.default_rng(0)
    counts = np.maximum(1, rng.lognormal(2.5, 1.0, 1_000_000)).astype(np.int64)
    np.save(tmp_path / "documents.npy", np.concatenate([[0], np.cumsum(counts)]))
    lengths = np.maximum(1, rng.gamma(4, 5, counts.sum())).astype(np.int64)
    np.save(tmp_path / "sentences.npy", np.concatenate([[0], np.cumsum(lengths)]))
    del counts, lengths
    split, processor, begin = LargeSplit(tmp_path), time.process_time(), time.perf_counter()
    rows = rows_of(split, max_length, "packed", tmp_path)
    count, pairs = rows.rows_per_epoch, len(rows._plans.load(0)["sequences"])
    processor, seconds = time.process_time() - processor, time.perf_counter() - begin
    print(f"\n{max_length}: {pairs:,} pairs, {count:,} rows; a million pairs in {seconds / pairs * 1e6:.2f} s", end="")
    print(f" ({processor / pairs * 1e6:.2f} s of processor)")
    print(f"largest resident size {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB, the corpus too")

    phases = Phases((Phase(1_000_001, 256, max_length, "a"),))
    for step in (0, 1_000_000):
        for epoch in (0, step * 256 // count):
            rows._plans.load(epoch)  # cached
        begin = time.perf_counter()
        config = RowsConfig(max_length, packing="packed", kind="a")
        again = rows_of(LargeSplit(tmp_path), max_length, "packed", tmp_path)
        loader = iter(Loader(lambda *_, again=again: again, phases, step, config.batch_specs))
        assert next(loader)[0].number == step
        print(f"{max_length}: step {step:,} after {time.perf_counter() - begin:.2f} s")
        loader.close()


@pytest.mark.parametrize("length", [128, 512])
def test_strategies(length):
    """Rows a second of processor time of each strategy alone, on words of 1.3 pieces, in batches of 32,768 tokens."""
    rng, count = np.random.default_rng(0), 32 * 1024 // length
    candidates = np.zeros((count, length), bool)
    candidates[:, 1:-1] = True
    starts = candidates & (rng.random((count, length)) < 1 / 1.3)
    starts[:, 1] = True
    for name in catalogue.parts("rows.strategies", having="select"):
        config = MaskingConfig(strategy=name)
        select, options = config.selection
        counts = config.counts(np.full(count, length), candidates.sum(axis=1), length, np.zeros(count, np.uint64))
        seconds = []
        for batch in range(20):
            keys, begin = random.fold(random.key("bench", batch), np.arange(count)), time.process_time()
            select(candidates, starts, counts, keys, options)
            seconds.append(time.process_time() - begin)
        print(f"\n{name} {length}: {count / np.median(seconds):,.0f} rows/s", end="")
