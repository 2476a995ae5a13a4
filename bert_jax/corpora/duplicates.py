"""Finds documents that repeat an earlier one, in a first pass over the corpus; the second pass leaves them out.

Exact duplicates have the same text except for white space. Near duplicates share about four in five of their runs of
five words (Broder 1997; MinHash signatures from ``datasketch``, candidates by banding). Among duplicates, the first
document of the corpus is kept. The first pass takes 16 bytes of memory per document, or 176 to find near duplicates.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bert_jax.corpora.source import Shard, Source, documents
from bert_jax.corpora.workplace import Workplace
from bert_jax.errors import optional_library
from bert_jax.records import Document
from bert_jax.text.learn import IDEOGRAPH

Duplicates = Literal["keep", "exact", "near"]  # the values of ``config.corpus.duplicates``
PERMUTATIONS, BAND = 40, 4  # ten bands of four values: pairs with a similarity above about 0.56 become candidates
SIMILARITY = 0.8  # near duplicates have at least this estimated Jaccard similarity of their shingles
SHINGLE = 5  # the number of words in a shingle
WORD = re.compile(rf"{IDEOGRAPH.pattern}|\w+")
EMPTY = np.zeros(2, np.uint64)  # the digest of a document without text, which is never a duplicate


def near_library() -> Any:
    """Return the module ``datasketch``. Raises ``UserError`` if it is not installed."""
    return optional_library("datasketch", "config.corpus.duplicates='near'")


def mark(
    source: Source,
    workplace: Workplace,
    shards: Sequence[Shard],
    near: bool,
    run: Callable[[Callable[[Shard], Any]], None],
) -> dict[str, int]:
    """Write for each shard which of its documents to leave out, and return how many are exact and near duplicates.

    Args:
      near: whether near duplicates are left out too.
      run: calls a picklable function for each shard, in the workers of the build.
    """
    make = functools.partial(_write_digests, source, workplace, near)
    work = functools.partial(workplace.once, "fingerprints", make)
    run(work)
    ends = np.cumsum([work(shard)["documents"] for shard in shards])
    with workplace.scratch() as folder:

        def load(name: str) -> np.ndarray:
            return np.concatenate([np.load(workplace.get(f"parts/{s.name}.{name}.npy", folder)) for s in shards])

        digests = load("digests")
        exact = exact_duplicates(digests)
        alike = np.zeros_like(exact)
        if near:
            rest = ~exact & digests.any(axis=1)
            alike[rest] = near_duplicates(load("signatures")[rest])
        for shard, marks in zip(shards, np.split(exact | alike, ends[:-1]), strict=True):
            np.save(folder / "marks.npy", marks)
            workplace.put(folder / "marks.npy", _marks_name(shard))
    return {"exact_duplicates": int(exact.sum()), "near_duplicates": int(alike.sum())}


def _write_digests(source: Source, workplace: Workplace, near: bool, shard: Shard, folder: Path) -> dict[str, int]:
    """Write digests of a shard's n documents, uint64 [n, 2], to the work folder, and return their number.

    If ``near``, write the documents' signatures too, uint32 [n, 40].
    """
    digests, signatures = [EMPTY], [np.zeros(PERMUTATIONS, np.uint32)]
    for document in documents(source, shard.pieces):
        text = " ".join(document.sentences)
        digests.append(_digest(text))
        if near:
            signatures.append(signature(text))
    for name, rows in (("digests", digests), ("signatures", signatures)):
        np.save(folder / f"{name}.npy", np.stack(rows)[1:])
        workplace.put(folder / f"{name}.npy", f"parts/{shard.name}.{name}.npy")
    return {"documents": len(digests) - 1}


def _digest(text: str) -> np.ndarray:
    """Return a digest of the words of ``text``, uint64 [2]: equal for texts that differ only in white space.

    It is zero if there are no words.
    """
    words = " ".join(text.split())
    if not words:
        return EMPTY
    return np.frombuffer(hashlib.blake2b(words.encode("utf-8", "replace"), digest_size=16).digest(), "<u8")


def signature(text: str) -> np.ndarray:
    """Return the MinHash signature of the shingles of ``text``, uint32 [40]."""
    words = WORD.findall(text.lower())
    runs = {" ".join(words[i : i + SHINGLE]) for i in range(max(1, len(words) - SHINGLE + 1))}
    minhash = near_library().MinHash(PERMUTATIONS, seed=1)
    minhash.update_batch([run.encode("utf-8", "replace") for run in sorted(runs)])
    return minhash.hashvalues.astype(np.uint32)


def _marks_name(shard: Shard) -> str:
    """Return the name, in the work folder, of the file with bool [n]: whether each document of a shard is left out."""
    return f"parts/{shard.name}.duplicates.npy"


def exact_duplicates(digests: np.ndarray) -> np.ndarray:
    """Return bool [n]: whether each row of ``digests`` (uint64 [n, 2]) equals an earlier row; False for a zero row."""
    return (_first_equal(digests) != np.arange(len(digests))) & digests.any(axis=1)


def _first_equal(rows: np.ndarray) -> np.ndarray:
    """Return int64 [n]: the number of the first row that equals each row of ``rows`` (uint64 [n, 2])."""
    _, firsts, groups = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    return firsts[groups.reshape(-1)]  # type: ignore[no-any-return]


def near_duplicates(signatures: np.ndarray) -> np.ndarray:
    """Return bool [n]: whether each row of ``signatures`` (uint32 [n, 40]) is linked to an earlier row.

    For each band, a row is compared with the first row that has the same values in this band. The two are linked if
    at least ``SIMILARITY`` of all their values agree. Links are transitive: of a chain of versions only the first is
    kept.
    """
    from scipy.sparse import coo_array, csgraph

    numbers = np.arange(len(signatures))
    links = [np.zeros((2, 0), np.int64)]
    for start in range(0, PERMUTATIONS, BAND):
        first = _first_equal(np.ascontiguousarray(signatures[:, start : start + BAND]).view("<u8"))
        later = np.flatnonzero(first != numbers)
        alike = (signatures[later] == signatures[first[later]]).mean(axis=1) >= SIMILARITY
        links.append(np.stack([later, first[later]])[:, alike])
    pairs = np.concatenate(links, axis=1)
    if not pairs.size:
        return np.zeros(len(signatures), bool)
    graph = coo_array((np.ones(pairs.shape[1], bool), tuple(pairs)), (len(signatures), len(signatures)))
    _, chains = csgraph.connected_components(graph, directed=False)
    _, firsts = np.unique(chains, return_index=True)
    return ~np.isin(numbers, firsts)


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
