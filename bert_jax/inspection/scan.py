"""Reads the tokens of a split once, writes hashes of its sentences to disk, and counts what the checks need."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bert_jax.corpora.store import CorpusSplit
from bert_jax.inspection import hashing
from bert_jax.inspection.hashing import Hashes

_TOKENS_AT_ONCE = 1 << 17  # few enough for temporary arrays to stay in the processor's cache
_SENTENCES_AT_ONCE = 1 << 20
Ints = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Scan:
    """The counts and hashes of a split with S sentences and N documents; V is the vocabulary's size."""

    split: CorpusSplit
    sentence_hashes: Hashes  # [S], on disk: equal for equal sentences
    document_hashes: Hashes  # [N], on disk
    token_counts: Ints  # [V] how often each piece occurs
    unknown: Ints  # [N] the number of unknown tokens in each document


def scan(split: CorpusSplit, vocab_size: int, unk_id: int, folder: Path, tokens_at_once: int = _TOKENS_AT_ONCE) -> Scan:
    """Read ``split`` once and return its counts and hashes.

    Args:
      folder: where to write the hashes, which take 8 bytes per sentence and per document.
      tokens_at_once: the number of tokens in memory; the result does not depend on it.
    """
    order_table = hashing.token_table(vocab_size)
    sentences = _on_disk(folder / f"{split.name}.sentences.npy", split.num_sentences)
    token_counts = np.zeros(vocab_size, np.int64)
    unknown = np.zeros(split.num_documents, np.int64)
    for first, tokens, lengths in chunks(split, tokens_at_once):
        here = slice(first, first + len(lengths))
        sentences[here] = hashing.with_length(hashing.sequence_hashes(order_table[tokens], lengths), lengths)
        token_counts += np.bincount(tokens, minlength=vocab_size)
        _add_by_document(unknown, np.flatnonzero(tokens == unk_id), split, first, lengths)
    documents = _document_hashes(split, sentences, folder)
    return Scan(split, sentences, documents, token_counts, unknown)


def chunks(split: CorpusSplit, at_once: int) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield (number of the first sentence, tokens, sentence lengths) for runs of whole sentences.

    A run has at most ``at_once`` tokens, or a single longer sentence.
    """
    for first, offsets in _ranges(split.sentence_offsets, at_once):
        yield first, split.read(offsets[:1], offsets[-1:] - offsets[:1]), np.diff(offsets)


def _ranges(offsets: np.ndarray, at_once: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (number of the first item, offsets of its items) for ranges of items; a range spans at most ``at_once``."""
    first = 0
    while first < len(offsets) - 1:
        stop = int(np.searchsorted(offsets, offsets[first] + at_once, side="right")) - 1
        stop = max(stop, first + 1)
        yield first, np.asarray(offsets[first : stop + 1])
        first = stop


def _on_disk(path: Path, size: int) -> Hashes:
    return (
        np.lib.format.open_memmap(path, mode="w+", dtype=np.uint64, shape=(size,)) if size else np.zeros(0, np.uint64)
    )


def _add_by_document(counts: Ints, places: np.ndarray, split: CorpusSplit, first: int, lengths: np.ndarray) -> None:
    """For each token in ``places``, add 1 to the count of its document in ``counts``.

    ``places`` are token offsets from the start of the sentence ``first``; ``lengths`` are the lengths of the sentences
    from ``first`` on.
    """
    sentences = first + np.searchsorted(np.cumsum(lengths), places, side="right")
    np.add.at(counts, np.searchsorted(split.document_starts, sentences, side="right") - 1, 1)


def _document_hashes(split: CorpusSplit, sentences: Hashes, folder: Path) -> Hashes:
    hashes = _on_disk(folder / f"{split.name}.documents.npy", split.num_documents)
    for first, starts in _ranges(split.document_starts, _SENTENCES_AT_ONCE):
        of_range = hashing.sequence_hashes(np.asarray(sentences[starts[0] : starts[-1]]), np.diff(starts))
        hashes[first : first + len(of_range)] = of_range
    return hashes
