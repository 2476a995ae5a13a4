"""Reads the tokens of a split once, hashes its sentences, and counts what the checks need."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from bert_jax.corpora.store import CorpusSplit
from bert_jax.inspection import hashing
from bert_jax.inspection.hashing import Hashes

TOKENS_AT_ONCE = 1 << 17  # few enough for temporary arrays to stay in the processor's cache
Ints = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Scan:
    """The counts and hashes of a split with S sentences and N documents; V is the vocabulary's size."""

    split: CorpusSplit
    sentence_hashes: Hashes  # [S]: equal for equal sentences
    document_hashes: Hashes  # [N]
    token_counts: Ints  # [V] how often each piece occurs
    unknown: Ints  # [N] the number of unknown tokens in each document


def scan(
    split: CorpusSplit,
    vocab_size: int,
    unk_id: int,
    tokens_at_once: int = TOKENS_AT_ONCE,
) -> Scan:
    """Read ``split`` once and return its counts and hashes.

    Args:
      tokens_at_once: the number of tokens in memory; the result does not depend on it.
    """
    order_table = hashing.token_table(vocab_size, "order")
    sentences = np.zeros(split.num_sentences, np.uint64)
    token_counts = np.zeros(vocab_size, np.int64)
    unknown = np.zeros(split.num_documents, np.int64)
    for first, tokens, lengths in chunks(split, tokens_at_once):
        here = slice(first, first + len(lengths))
        sentences[here] = hashing.with_length(hashing.sequence_hashes(order_table[tokens], lengths), lengths)
        token_counts += np.bincount(tokens, minlength=vocab_size)
        _add_by_document(unknown, np.flatnonzero(tokens == unk_id), split, first, lengths)
    documents = hashing.sequence_hashes(sentences, np.diff(split.document_starts))
    return Scan(split, sentences, documents, token_counts, unknown)


def chunks(split: CorpusSplit, at_once: int) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield (number of the first sentence, tokens, sentence lengths) for runs of whole sentences.

    A run has at most ``at_once`` tokens, or a single longer sentence.
    """
    offsets, first = split.sentence_offsets, 0
    while first < split.num_sentences:
        stop = max(int(np.searchsorted(offsets, offsets[first] + at_once, side="right")) - 1, first + 1)
        edges = np.asarray(offsets[first : stop + 1])
        yield first, split.read(edges[:1], edges[-1:] - edges[:1]), np.diff(edges)
        first = stop


def _add_by_document(counts: Ints, places: np.ndarray, split: CorpusSplit, first: int, lengths: np.ndarray) -> None:
    """For each token in ``places``, add 1 to the count of its document in ``counts``.

    ``places`` are token offsets from the start of the sentence ``first``; ``lengths`` are the lengths of the sentences
    from ``first`` on.
    """
    if len(places):
        sentence = first + np.searchsorted(np.cumsum(lengths), places, side="right")
        documents = _document_of(split, sentence)
        low = int(documents.min())
        added = np.bincount(documents - low)
        counts[low : low + len(added)] += added


def _document_of(split: CorpusSplit, sentences: npt.ArrayLike) -> np.ndarray:
    """Return the number of the document of each sentence number in ``sentences``."""
    return np.searchsorted(split.document_starts, sentences, side="right") - 1
