"""Finds documents that repeat an earlier document, in a first pass over the corpus; the second pass leaves them out.

Duplicates have the same text except for white space. The first document of the corpus is kept. The first pass takes 16
bytes of memory per document.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bert_jax.corpora.source import Shard, Source, documents
from bert_jax.corpora.workplace import Workplace
from bert_jax.records import Document

Duplicates = Literal["keep", "exact"]  # the values of ``config.corpus.duplicates``
EMPTY = np.zeros(2, np.uint64)  # the digest of a document without text, which is never a duplicate


def mark(
    source: Source, workplace: Workplace, shards: Sequence[Shard], run: Callable[[Callable[[Shard], Any]], None]
) -> dict[str, int]:
    """Write for each shard which of its documents are left out, and return the number of duplicates by kind.

    Args:
      run: calls a picklable function for each shard, in the workers of the build.
    """
    work = functools.partial(workplace.once, "fingerprints", functools.partial(_write_digests, source, workplace))
    run(work)
    ends = np.cumsum([work(shard)["documents"] for shard in shards])
    with workplace.scratch() as folder:
        digests = np.concatenate([np.load(workplace.get(_digests_name(shard), folder)) for shard in shards])
        exact = exact_duplicates(digests)
        for shard, marks in zip(shards, np.split(exact, ends[:-1]), strict=True):
            np.save(folder / "marks.npy", marks)
            workplace.put(folder / "marks.npy", _marks_name(shard))
    return {"exact_duplicates": int(exact.sum())}


def _write_digests(source: Source, workplace: Workplace, shard: Shard, folder: Path) -> dict[str, int]:
    """Write digests of a shard's n documents, uint64 [n, 2], to the work folder, and return their number."""
    digests = [_digest(" ".join(document.sentences)) for document in documents(source, shard.pieces)]
    np.save(folder / "digests.npy", np.stack([EMPTY, *digests])[1:])
    workplace.put(folder / "digests.npy", _digests_name(shard))
    return {"documents": len(digests)}


def _digest(text: str) -> np.ndarray:
    """Return a digest of the words of ``text``, uint64 [2]: equal for texts that differ only in white space.

    It is zero if there are no words.
    """
    words = " ".join(text.split())
    if not words:
        return EMPTY
    return np.frombuffer(hashlib.blake2b(words.encode("utf-8", "replace"), digest_size=16).digest(), "<u8")


def _digests_name(shard: Shard) -> str:
    """Return the name, in the work folder, of the file with the digests of a shard."""
    return f"parts/{shard.name}.digests.npy"


def _marks_name(shard: Shard) -> str:
    """Return the name, in the work folder, of the file with bool [n]: whether each document of a shard is left out."""
    return f"parts/{shard.name}.duplicates.npy"


def exact_duplicates(digests: np.ndarray) -> np.ndarray:
    """Return bool [n]: whether each row of ``digests`` (uint64 [n, 2]) equals an earlier row; False for a zero row."""
    _, firsts, groups = np.unique(digests, axis=0, return_index=True, return_inverse=True)
    repeats: np.ndarray = firsts[groups.reshape(-1)] != np.arange(len(digests))
    return repeats & digests.any(axis=1)


def unmarked(items: Iterable[Document], workplace: Workplace, shard: Shard, folder: Path) -> Iterator[Document]:
    """Yield the documents of a shard that ``mark`` has not left out.

    Args:
      items: all documents of the shard.
      folder: a local folder for copies.
    """
    marks = np.load(workplace.get(_marks_name(shard), folder))
    for document, marked in zip(items, marks.tolist(), strict=True):
        if not marked:
            yield document
