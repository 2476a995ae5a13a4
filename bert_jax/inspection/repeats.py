"""Finds repeated text in a corpus: lines, documents, and held-out text that is also in the training split."""

from __future__ import annotations

import heapq

import numpy as np

from bert_jax.inspection import hashing
from bert_jax.inspection.check import Check, grade, percent, ratio, worst
from bert_jax.inspection.fixes import Fixes
from bert_jax.inspection.scan import Scan
from bert_jax.text.tokenizer import Tokenizer

LONG = 10  # least tokens of a long line; shorter lines, such as "Yes." or a heading, repeat in good texts too
_MATTERS = 0.005  # a smaller share of the tokens, such as a few equal short documents have, changes no loss
SHOWN = 10
_SHOWN_CHARACTERS = 100


def lines(scan: Scan, tokenizer: Tokenizer | None, fixes: Fixes) -> Check:
    """Check for lines that are equal token by token."""
    distinct = repeats = long_repeats = long_tokens = 0
    top: list[tuple[int, int, int]] = []  # (repeated tokens, lines, hash), the most tokens first
    for (values,) in hashing.sorted_slices([scan.sentence_hashes]):
        hashes, counts = np.unique(values, return_counts=True)
        again, lengths = counts - 1, hashing.length_of(hashes)
        long_again = np.where(lengths >= LONG, again, 0)
        tokens = long_again * lengths
        distinct, repeats = distinct + len(hashes), repeats + int(again.sum())
        long_repeats, long_tokens = long_repeats + int(long_again.sum()), long_tokens + int(tokens.sum())
        largest = [i for i in np.argsort(-tokens, kind="stable")[:SHOWN].tolist() if tokens[i]]
        top = heapq.nlargest(SHOWN, [*top, *((int(tokens[i]), int(counts[i]), int(hashes[i])) for i in largest)])
    share = ratio(long_tokens, scan.split.num_tokens)
    return Check(
        "duplicate_lines",
        grade(share, 0.05, 0.30),
        f"{percent(share)} of tokens in repeated lines of {LONG} tokens or more ({long_repeats:,} lines);"
        f" {percent(ratio(repeats, scan.split.num_sentences))} of all lines repeat one before",
        f"lines repeat: {fixes.duplicates()}",
        {
            "repeated_lines": repeats,
            "distinct_lines": distinct,
            "long_repeated_lines": long_repeats,
            "long_repeated_token_share": share,
            "top_counts": [count for _, count, _ in top],
        },
        _examples(scan, top, tokenizer),
    )


def _examples(scan: Scan, top: list[tuple[int, int, int]], tokenizer: Tokenizer | None) -> tuple[tuple[str, str], ...]:
    if tokenizer is None or not top:
        return ()
    places = hashing.first_places(scan.sentence_hashes, np.array([value for _, _, value in top], np.uint64))
    return tuple((f"{count:,} times", _sentence_text(scan, places[value], tokenizer)) for _, count, value in top)


def _sentence_text(scan: Scan, sentence: int, tokenizer: Tokenizer) -> str:
    """Return the start of a sentence as text."""
    start, stop = scan.split.sentence_offsets[sentence : sentence + 2].tolist()
    length = min(stop - start, _SHOWN_CHARACTERS)
    text = tokenizer.decode(scan.split.read(np.array([start]), np.array([length])).tolist())
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"


def documents(scan: Scan, fixes: Fixes) -> Check:
    """Check for documents that are equal token by token. What counts is their share of the tokens."""
    total = scan.split.num_documents
    _, first = np.unique(scan.document_hashes, return_index=True)
    repeated = np.ones(total, bool)
    repeated[first] = False
    share, token_share = ratio(repeated.sum(), total), _token_share(scan, repeated)
    status = grade(token_share, _MATTERS, 0.02)
    return Check(
        "duplicate_documents",
        status,
        f"{total - len(first):,} of {total:,} documents ({percent(share)}) repeat one before, with"
        f" {percent(token_share)} of the tokens",
        f"documents repeat: {fixes.duplicates()}",
        {
            "repeated_documents": total - len(first),
            "distinct_documents": len(first),
            "share": share,
            "token_share": token_share,
        },
    )


def heldout(train: Scan, held: Scan, fixes: Fixes) -> Check:
    """Check for held-out documents and lines that are also in the training split: they lower the held-out loss."""
    shared_documents = _shared_documents(train, held)
    documents, lines, tokens = int(shared_documents.sum()), 0, 0
    for known, values in hashing.sorted_slices([train.sentence_hashes, held.sentence_hashes]):
        lengths = hashing.length_of(values)
        shared = np.isin(values, known) & (lengths >= LONG)
        lines, tokens = lines + int(shared.sum()), tokens + int(lengths[shared].sum())
    token_share = ratio(tokens, held.split.num_tokens)
    document_share, whole_share = ratio(documents, held.split.num_documents), _token_share(held, shared_documents)
    status = worst([grade(whole_share, _MATTERS, 0.01), grade(token_share, 0.05, 0.25)])
    return Check(
        "heldout_overlap",
        status,
        f"{documents:,} of {held.split.num_documents:,} held-out documents are in the training split as a whole, with"
        f" {percent(whole_share)} of the held-out tokens; {percent(token_share)} of the held-out tokens are in equal"
        f" lines of {LONG} tokens or more",
        f"held-out losses are too good: {fixes.duplicates()}",
        {
            "documents": documents,
            "lines": lines,
            "token_share": token_share,
            "document_share": document_share,
            "document_token_share": whole_share,
        },
    )


def _shared_documents(train: Scan, held: Scan) -> np.ndarray:
    """Return bool [N]: whether each of the N documents of ``held`` is equal to one of ``train``."""
    shared = np.zeros(held.split.num_documents, bool)
    for (known,) in hashing.sorted_slices([train.document_hashes]):
        shared |= np.isin(held.document_hashes, known)
    return shared


def _token_share(scan: Scan, documents: np.ndarray) -> float:
    """Return the share of the tokens of a split that the ``documents`` (bool [N]) have."""
    tokens = np.diff(scan.split.sentence_offsets[np.asarray(scan.split.document_starts)])
    return ratio(tokens[documents].sum(), scan.split.num_tokens)
