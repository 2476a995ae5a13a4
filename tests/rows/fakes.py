"""A corpus split in memory, with the members of ``corpora.store.CorpusSplit`` that rows use; laws of random counts."""

from __future__ import annotations

import numpy as np

from bert_jax.rows.interfaces import TokenFacts

VOCAB_SIZE = 1000
FACTS = TokenFacts(pad=0, cls=2, sep=3, mask=4, vocab_size=VOCAB_SIZE)


class FakeSplit:
    """Sentences of given lengths; ``tokens`` default to ids that name their own place, modulo the vocabulary."""

    name = "train"

    def __init__(self, documents: list[list[int]] | list[np.ndarray], tokens: np.ndarray | None = None):
        self.document_starts = np.cumsum([0, *(len(d) for d in documents)]).astype(np.int64)
        lengths = np.concatenate([np.asarray(d, np.int64) for d in documents]) if documents else np.zeros(0, np.int64)
        self.sentence_offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        self.num_tokens = int(self.sentence_offsets[-1])
        self.num_documents, self.num_sentences = len(documents), len(lengths)
        own = 5 + np.arange(self.num_tokens, dtype=np.int64) % (VOCAB_SIZE - 5)
        self.tokens = (own if tokens is None else tokens).astype(np.int32)
        self.fingerprint = f"fake-{self.num_tokens}-{self.num_sentences}-{self.num_documents}"

    def sentence_lengths(self) -> np.ndarray:
        return np.diff(self.sentence_offsets)

    def read(self, starts: np.ndarray, lengths: np.ndarray, column: str = "tokens") -> np.ndarray:
        ends = np.cumsum(lengths)
        shift = np.repeat(starts - (ends - lengths), lengths)
        return getattr(self, column)[np.arange(ends[-1] if len(ends) else 0) + shift]


def fake_split(
    num_documents: int = 400, sentences: tuple[int, int] = (5, 60), mean: float = 25.0, seed: int = 0
) -> FakeSplit:
    """Documents with a uniform number of sentences and roughly normal sentence lengths."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(sentences[0], sentences[1] + 1, num_documents)
    return FakeSplit([np.maximum(1, rng.normal(mean, mean / 3, n)).astype(int) for n in counts])


def z(hits: float, trials: float, rate: float) -> float:
    """How many deviations the number of hits is off its mean."""
    return float((hits - trials * rate) / np.sqrt(trials * rate * (1 - rate)))


def chi_square_z(observed: np.ndarray, expected: np.ndarray) -> float:
    """Standardised chi-square: about normal where the model holds."""
    statistic, freedom = ((observed - expected) ** 2 / expected).sum(), len(observed) - 1
    return float((statistic - freedom) / np.sqrt(2 * freedom))
