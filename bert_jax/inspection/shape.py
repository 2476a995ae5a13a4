"""Checks the lengths of documents and sentences, and the training rows that are made from them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from bert_jax.corpora.store import CorpusSplit
from bert_jax.errors import UserError
from bert_jax.inspection.check import Check, Status, grade, percent, ratio, worst
from bert_jax.inspection.fixes import Fixes
from bert_jax.inspection.scan import Ints
from bert_jax.rows import chunks, random
from bert_jax.rows.arrangements.sentence_pairs import short_targets
from bert_jax.rows.rows_config import RowsConfig

_LONG_SENTENCE = 512  # tokens; a longer sentence does not fit into any row
_SENTENCES_AT_ONCE = 1 << 22
_PLANNED_SENTENCES = 1 << 18  # rows are planned for a sample of so many sentences from all over the split
RUN_SENTENCES = 512  # sentences in each run of the sample: far more than a row has
_MANY_SINGLE = 0.3  # a larger share of one-sentence documents leaves no pairs to make, however long rows are


@dataclasses.dataclass(frozen=True)
class _Lengths:
    """The lengths of the sentences and N documents of a split."""

    long_sentence_tokens: int  # tokens in sentences longer than _LONG_SENTENCE
    document_tokens: Ints  # [N] the number of tokens of each document
    document_sentences: Ints  # [N] the number of sentences of each document


def measure_lengths(split: CorpusSplit) -> _Lengths:
    long_tokens = 0
    for start in range(0, split.num_sentences, _SENTENCES_AT_ONCE):
        lengths = np.diff(split.sentence_offsets[start : start + _SENTENCES_AT_ONCE + 1])
        long_tokens += int(lengths[lengths > _LONG_SENTENCE].sum())
    starts = np.asarray(split.document_starts)
    return _Lengths(long_tokens, np.diff(split.sentence_offsets[starts]), np.diff(starts))


def documents(split: CorpusSplit, lengths: _Lengths, dropped: dict[str, int], fixes: Fixes, pairs: bool) -> Check:
    """Check for empty documents (the build drops them), one-sentence documents, and a document with much of the text.

    ``pairs``: whether rows are pairs of sentences of one document; otherwise one-sentence documents are no fault.
    """
    empty = int(dropped.get("empty_documents", 0))
    single = int((lengths.document_sentences == 1).sum())
    largest = ratio(lengths.document_tokens.max(initial=0), split.num_tokens)
    empty_share, single_share = ratio(empty, split.num_documents + empty), ratio(single, split.num_documents)
    short = single_share if pairs else 0.0
    status = worst([grade(empty_share, 0.05, 0.5), grade(short, 0.2, 0.5), grade(largest, 0.25, 0.9)])
    fix = ""
    if short > 0.2:
        fix = f"documents are short: {fixes.longer_documents()}"
    elif empty_share > 0.05:
        fix = f"documents without text: {fixes.other_field()}"
    elif status != "ok":
        fix = f"one document holds {percent(largest)} of the text: {fixes.shorter_documents()}"
    median = int(np.median(lengths.document_tokens)) if len(lengths.document_tokens) else 0
    return Check(
        "documents",
        status,
        f"{split.num_documents:,} documents, median {median:,} tokens, the largest {percent(largest)} of all;"
        f" {percent(single_share)} of one sentence; {empty:,} empty ones dropped",
        fix,
        {
            "documents": split.num_documents,
            "one_sentence_documents": single,
            "one_sentence_share": single_share,
            "empty_documents": empty,
            "largest_share": largest,
            "median_tokens": median,
        },
    )


def sentences(split: CorpusSplit, lengths: _Lengths, fixes: Fixes) -> Check:
    """Check the lengths of sentences. Very long sentences are mostly lines that were not split into sentences."""
    share = ratio(lengths.long_sentence_tokens, split.num_tokens)
    mean = ratio(split.num_tokens, split.num_sentences)
    status = worst([grade(share, 0.05, 0.25), "warn" if mean < 4 else "ok"])
    fix = ""
    if share > 0.05:
        fix = f"lines have no sentence ends: {fixes.option('format', 'free', 'sentences') or fixes.language()}"
    elif status != "ok":
        fix = f"lines are single words: {fixes.joins_lines() or 'join them to sentences before the build'}"
    return Check(
        "sentences",
        status,
        f"{split.num_sentences:,} sentences, mean {mean:.1f} tokens; {percent(share)} of tokens in sentences over"
        f" {_LONG_SENTENCE}",
        fix,
        {"sentences": split.num_sentences, "mean_tokens": mean, "long_token_share": share},
    )


@dataclasses.dataclass(frozen=True)
class _Sample:
    """A sample of a split: runs of sentences from all over it, each as a document.

    It has the fields of a split that ``rows.chunks`` reads.
    """

    sentence_offsets: Ints
    document_starts: Ints


def _sample(split: CorpusSplit) -> _Sample:
    """Return the whole split, or about ``_PLANNED_SENTENCES`` of it in evenly spaced runs if it has more sentences."""
    starts = np.asarray(split.document_starts)
    if split.num_sentences <= _PLANNED_SENTENCES:
        return _Sample(np.asarray(split.sentence_offsets), starts)
    runs = -(-np.diff(starts) // RUN_SENTENCES)  # number of runs in each document
    within = np.arange(runs.sum()) - np.repeat(np.cumsum(runs) - runs, runs)
    first = np.repeat(starts[:-1], runs) + within * RUN_SENTENCES
    last = np.minimum(first + RUN_SENTENCES, np.repeat(starts[1:], runs))
    stride = -(-split.num_sentences // _PLANNED_SENTENCES)
    first, last = first[::stride], last[::stride]
    lengths = [np.diff(split.sentence_offsets[a : b + 1]) for a, b in zip(first.tolist(), last.tolist(), strict=True)]
    edges = [np.concatenate([[0], np.cumsum(counts)]) for counts in (np.concatenate(lengths), last - first)]
    return _Sample(*edges)


def balance(split: CorpusSplit, max_lengths: tuple[int, ...], fixes: Fixes) -> Check:
    """Check, for each row length, the share of random next sentences among packed pairs."""
    try:
        all_limits = {n: RowsConfig(n, packing="packed").limits for n in max_lengths}
        chunks.check(split)
    except UserError as error:
        return Check("next_sentence_balance", "bad", "no pairs can be made", str(error))
    sample = _sample(split)
    facts: dict[str, Any] = {}
    for max_length, limits in all_limits.items():
        key = random.key(split.fingerprint, "inspection", max_length)
        rules = chunks.Rules(max_length, 0.1, short_targets(sample, key, limits, 0.1))
        packed = np.concatenate(list(chunks.make(sample, key, rules)))
        cut = chunks.cut_chunks(sample, key, np.arange(len(sample.document_starts) - 1), rules)
        facts[str(max_length)] = {
            "random_share": float(packed["is_random"].mean()),
            "one_sentence_chunks": float((cut.middle == cut.stop).mean()),
        }
    single = float((np.diff(np.asarray(split.document_starts)) == 1).mean())
    return _balance(facts, fixes, single)


def _balance(facts: dict[str, Any], fixes: Fixes, single: float) -> Check:
    """``single``: the share of one-sentence documents, which rows of no length turn into pairs."""
    largest = max(f["random_share"] for f in facts.values())
    status: Status = grade(largest, 0.65, 0.85)
    figures = (
        f"at {n}, {percent(f['random_share'])} of packed pairs are random: the {percent(f['one_sentence_chunks'])} of a"
        " single sentence, which has no true second part, and half of the others"
        for n, f in facts.items()
    )
    worst_length = max(facts, key=lambda n: float(facts[n]["random_share"]))
    means = fixes.longer_rows(int(worst_length)) if single < _MANY_SINGLE else fixes.longer_documents()
    fix = f"many chunks have one sentence at {worst_length}: {means}"
    return Check("next_sentence_balance", status, "; ".join(figures), fix, facts)
