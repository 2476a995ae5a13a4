"""Finds overlaps of an evaluation set with the training text: shared runs of 13 tokens, which is a common rule."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from bert_jax.corpora.source import documents
from bert_jax.corpora.store import Corpus, CorpusSplit
from bert_jax.corpora.text_files import Source
from bert_jax.errors import UserError
from bert_jax.inspection import hashing
from bert_jax.inspection.check import Check, grade, percent, ratio
from bert_jax.inspection.hashing import Hashes
from bert_jax.inspection.pieces import Tokenizer
from bert_jax.inspection.scan import TOKENS_AT_ONCE

RUN = 13  # the number of tokens in a run
FEWEST = 5  # a run with fewer different tokens does not count: "* * * * *" proves nothing
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_LINES_AT_ONCE = 1000


class _EvaluationSet(NamedTuple):
    """An evaluation set as hashes of runs of ``RUN`` tokens. Its U units are lines of text files."""

    runs: Hashes  # [R] hashes of all runs
    unit: np.ndarray  # int64 [R] the number of the unit of each run
    document: np.ndarray  # int64 [U] the number of the file of each unit
    num_units: int
    num_short: int  # units too short for a run, which cannot be judged

    @property
    def num_documents(self) -> int:
        return int(self.document.max(initial=-1)) + 1


def open_set(where: str, corpus: Corpus, tokenizer: Tokenizer | None) -> _EvaluationSet:
    """Return the evaluation set ``where``, a glob of text files with one unit a line.

    Raises:
      UserError: nothing is there, or ``tokenizer`` is not the tokenizer that made ``corpus``.
    """
    if tokenizer is None:
        raise UserError("--eval needs the vocabulary that the corpus was made with; name it with --vocab=vocab.txt")
    source = Source(paths=(os.fspath(where),), format="sentences")
    return _collect(_lines_of(source, tokenizer), _table(corpus))


def _table(corpus: Corpus) -> Hashes:
    return hashing.token_table(corpus.manifest["vocab_size"], "run")


def _lines_of(source: Source, tokenizer: Tokenizer) -> Iterator[tuple[int, np.ndarray]]:
    for number, document in enumerate(documents(source)):
        for start in range(0, len(document.sentences), _LINES_AT_ONCE):
            for tokens in tokenizer.encode_batch(document.sentences[start : start + _LINES_AT_ONCE]):
                yield number, tokens


def _collect(units: Iterator[tuple[int, np.ndarray]], table: Hashes) -> _EvaluationSet:
    runs: list[Hashes] = []
    unit: list[np.ndarray] = []
    document: list[int] = []
    short = 0
    for number, tokens in units:
        hashes = _run_hashes(table[tokens])[_is_varied(tokens)]
        short += not len(hashes)
        unit.append(np.full(len(hashes), len(document)))
        runs.append(hashes)
        document.append(number)
    if not document:
        raise UserError("the evaluation set has no text; check --eval (a glob of text files)")
    return _EvaluationSet(np.concatenate(runs), np.concatenate(unit), np.array(document), len(document), short)


def _run_hashes(values: Hashes) -> Hashes:
    """Return a hash of each run of ``RUN`` successive values in ``values`` [n]: [n - RUN + 1], or [0] if n < RUN."""
    count = len(values) - RUN + 1
    if count <= 0:
        return np.zeros(0, np.uint64)
    hashes = values[:count].copy()
    for i in range(1, RUN):
        hashes *= _MULTIPLIER
        hashes += values[i : i + count]
    return hashes


def _is_varied(tokens: np.ndarray) -> np.ndarray:
    """Return bool [n - RUN + 1]: whether each run in ``tokens`` [n] has at least ``FEWEST`` different tokens."""
    if len(tokens) < RUN:
        return np.zeros(0, bool)
    windows = np.sort(np.lib.stride_tricks.sliding_window_view(tokens, RUN), axis=1)
    return 1 + (windows[:, 1:] != windows[:, :-1]).sum(axis=1) >= FEWEST


def overlap(split: CorpusSplit, corpus: Corpus, evaluation: _EvaluationSet, name: str) -> Check:
    """Check which units of ``evaluation`` share a run of tokens with a document of ``split``."""
    wanted, of_run = np.unique(evaluation.runs, return_inverse=True)
    found = _search(split, wanted, _table(corpus))
    hit = np.zeros(evaluation.num_units, bool)
    hit[evaluation.unit[found[of_run]]] = True
    judged, units = evaluation.num_units - evaluation.num_short, int(hit.sum())
    documents = len(np.unique(evaluation.document[hit]))
    share = ratio(units, judged)
    status = grade(share, 0.0, 0.01)
    return Check(
        "evaluation_overlap",
        status,
        f"{units:,} of {judged:,} lines of the evaluation set ({percent(share)}) share {RUN} tokens in a"
        f" row with the training text; {evaluation.num_short:,} too short to judge",
        "remove these documents from the training text, or say so beside every result",
        {
            "set": name,
            "units": evaluation.num_units,
            "too_short": evaluation.num_short,
            "overlapping": units,
            "overlapping_share": share,
            "documents": evaluation.num_documents,
            "overlapping_documents": documents,
            "rule": f"{RUN} tokens in a row",
        },
    )


def _search(split: CorpusSplit, wanted: Hashes, table: Hashes) -> np.ndarray:
    """Return bool [W]: whether each of the sorted hashes ``wanted`` [W] is the hash of a run in ``split``.

    A run lies within one document.
    """
    found = np.zeros(len(wanted), bool)
    if not len(wanted):
        return found
    bits = min(max(len(wanted).bit_length() + 5, 16), 28)
    shift = np.uint64(64 - bits)
    maybe = np.zeros(1 << bits, bool)  # one look-up here rules out most hashes of the text
    maybe[wanted >> shift] = True
    edges = split.sentence_offsets[np.asarray(split.document_starts)]
    for start in range(0, split.num_tokens, TOKENS_AT_ONCE):
        length = min(TOKENS_AT_ONCE + RUN - 1, split.num_tokens - start)
        hashes = _run_hashes(table[split.read(np.array([start]), np.array([length]))])
        hashes = hashes[_within_document(edges, start, length)]
        hashes = hashes[maybe[hashes >> shift]]
        places = np.minimum(np.searchsorted(wanted, hashes), len(wanted) - 1)
        found[places[wanted[places] == hashes]] = True
    return found


def _within_document(edges: np.ndarray, start: int, length: int) -> np.ndarray:
    """Return bool [length - RUN + 1]: whether the run that starts at each token ends in the same document."""
    begun = np.zeros(length, np.int64)
    low, high = np.searchsorted(edges, [start, start + length])
    begun[edges[low:high] - start] = 1
    begun = np.cumsum(begun)
    return begun[: max(length - RUN + 1, 0)] == begun[RUN - 1 :]
