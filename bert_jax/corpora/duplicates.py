"""Finds documents that repeat an earlier one, in a first pass over the corpus; the second pass leaves them out.

Exact duplicates have the same text except for white space. Near duplicates share about four in five of their runs of
five words (Broder 1997; MinHash signatures from ``datasketch``, candidates by banding). Among duplicates, the first
document of the corpus is kept. The first pass takes 16 bytes of memory per document, or 176 to find near duplicates.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bert_jax.corpora.source import Shard, Source, documents
from bert_jax.corpora.workplace import Workplace
from bert_jax.errors import UserError
from bert_jax.records import Document
from bert_jax.text.learn import IDEOGRAPH

Duplicates = Literal["keep", "exact", "near"]  # the values of ``config.corpus.duplicates``
PERMUTATIONS, BAND = 40, 4  # ten bands of four values: pairs with a similarity above about 0.56 become candidates
SIMILARITY = 0.8  # near duplicates have at least this estimated Jaccard similarity of their shingles
SHINGLE = 5  # the number of words in a shingle
WORD = re.compile(rf"{IDEOGRAPH.pattern}|\w+")
EMPTY = np.zeros(2, np.uint64)  # the digest of a document without text, which is never a duplicate


def check_near() -> None:
    """Raise ``UserError`` if the package that near duplicates need is not installed."""
    try:
        import datasketch  # noqa: F401
    except ImportError as error:
        raise UserError(
            "config.corpus.duplicates='near' needs a package: pip install datasketch; or use 'exact'"
        ) from error


def write_digests(source: Source, workplace: Workplace, near: bool, shard: Shard, folder: Path) -> dict[str, int]:
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
    import datasketch

    words = WORD.findall(text.lower())
    runs = {" ".join(words[i : i + SHINGLE]) for i in range(max(1, len(words) - SHINGLE + 1))}
    minhash = datasketch.MinHash(PERMUTATIONS, seed=1)
    minhash.update_batch([run.encode("utf-8", "replace") for run in sorted(runs)])
    return minhash.hashvalues.astype(np.uint32)


def mark(workplace: Workplace, shards: Sequence[Shard], facts: Sequence[dict[str, Any]], near: bool) -> dict[str, int]:
    """Write for each shard which of its documents to leave out, and return how many are exact and near duplicates.

    Args:
      facts: what ``write_digests`` returned for each shard.
    """
    with workplace.scratch() as folder:

        def load(name: str) -> np.ndarray:
            arrays = [np.load(workplace.get(f"parts/{shard.name}.{name}.npy", folder)) for shard in shards]
            return np.concatenate(arrays) if arrays else np.zeros((0, 2), np.uint64)

        digests = load("digests")
        exact = exact_duplicates(digests)
        alike = np.zeros_like(exact)
        if near:
            rest = ~exact & digests.any(axis=1)
            alike[rest] = near_duplicates(load("signatures")[rest])
        ends = np.cumsum([counts["documents"] for counts in facts])
        for shard, marks in zip(shards, np.split(exact | alike, ends[:-1]), strict=True):
            np.save(folder / "marks.npy", marks)
            workplace.put(folder / "marks.npy", _marks_name(shard))
    return {"exact_duplicates": int(exact.sum()), "near_duplicates": int(alike.sum())}


def _marks_name(shard: Shard) -> str:
    """Return the name, in the work folder, of the file with bool [n]: whether each document of a shard is left out."""
    return f"parts/{shard.name}.duplicates.npy"


def exact_duplicates(digests: np.ndarray) -> np.ndarray:
    """Return bool [n]: whether each row of ``digests`` (uint64 [n, 2]) equals an earlier row; False for a zero row."""
    order = np.lexsort((np.arange(len(digests)), digests[:, 1], digests[:, 0]))
    ordered = digests[order]
    repeated = np.zeros(len(digests), bool)
    repeated[order[1:]] = (ordered[1:] == ordered[:-1]).all(axis=1)
    return repeated & digests.any(axis=1)


def near_duplicates(signatures: np.ndarray) -> np.ndarray:
    """Return bool [n]: whether each row of ``signatures`` (uint32 [n, 40]) is linked to an earlier row.

    For each band, a row is compared with the first row that has the same values in this band. The two are linked if
    at least ``SIMILARITY`` of all their values agree. Links are transitive: of a chain of versions only the first is
    kept.
    """
    root = np.arange(len(signatures))
    for later, first in _candidates(signatures):
        alike = (signatures[later] == signatures[first]).mean(axis=1) >= SIMILARITY
        for a, b in zip(later[alike].tolist(), first[alike].tolist(), strict=True):
            _link(root, a, b)
    return root != np.arange(len(signatures))


def _candidates(signatures: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (later, first) for each band: m rows, and for each of them the first row with equal values in the band."""
    for start in range(0, PERMUTATIONS, BAND):
        bands = np.ascontiguousarray(signatures[:, start : start + BAND]).view("<u8")  # [n, 2]
        order = np.lexsort((np.arange(len(bands)), bands[:, 1], bands[:, 0]))
        same = (bands[order[1:]] == bands[order[:-1]]).all(axis=1)
        positions = np.arange(len(order))
        begins = np.maximum.accumulate(np.where(np.concatenate([[False], same]), 0, positions))
        repeated = np.flatnonzero(np.concatenate([[False], same]))
        yield order[repeated], order[begins[repeated]]


def _link(root: np.ndarray, a: int, b: int) -> None:
    """Unite the sets that contain ``a`` and ``b``; their smallest member becomes the root (union-find)."""
    a, b = _find(root, a), _find(root, b)
    root[max(a, b)] = min(a, b)


def _find(root: np.ndarray, a: int) -> int:
    while root[a] != a:
        root[a] = root[root[a]]
        a = int(root[a])
    return a


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
