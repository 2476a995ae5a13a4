"""Cuts a corpus of ours into the rows of the race: blocks for transformers' Trainer, and masked held-out rows for all.

python -m tests.benchmarks.race.rows CORPUS FOLDER    # FOLDER has vocab.txt, and gets blocks.npy and heldout.npz
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bert_jax.corpora.store import Corpus
from tests.benchmarks.race.recipe import LENGTH, RATE

SEED, HELDOUT = 7, 2_048  # of the held-out rows


def documents(corpus: Corpus, split: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the ids of each document, and where its sentences begin, with the end of the last."""
    part = corpus.split(split)
    offsets, starts = part.sentence_offsets, part.document_starts
    for first, end in zip(starts[:-1], starts[1:], strict=True):
        begin = int(offsets[first])
        ids = part.read(np.array([begin]), np.array([int(offsets[end]) - begin]))
        yield np.asarray(ids), np.asarray(offsets[first : end + 1]) - begin


def blocks(corpus: Corpus, pieces: dict[str, int]) -> np.ndarray:
    """Return the training text as ``run_mlm`` groups it: documents with their ends, cut wherever a row is full."""
    ends = pieces["[CLS]"], pieces["[SEP]"]
    joined = np.concatenate([np.r_[ends[0], ids, ends[1]] for ids, _ in documents(corpus, "train")])
    return joined[: len(joined) // LENGTH * LENGTH].reshape(-1, LENGTH).astype(np.int32)


def heldout(corpus: Corpus, pieces: dict[str, int]) -> dict[str, np.ndarray]:
    """Return rows of whole held-out sentences, masked as BERT masks (80/10/10), the same for every model."""
    draw, texts = np.random.default_rng(SEED), []
    for ids, offsets in documents(corpus, "heldout"):
        row: list[int] = []
        for begin, end in zip(offsets[:-1], offsets[1:], strict=True):
            sentence = ids[begin:end][: LENGTH - 2]
            if len(row) + len(sentence) > LENGTH - 2:
                texts.append(row)
                row = []
            row = [*row, *sentence]
        texts.append(row)
    rows = np.zeros((len(texts), LENGTH), np.int32)
    for row, text in zip(rows, texts, strict=True):
        row[: len(text) + 2] = [pieces["[CLS]"], *text, pieces["[SEP]"]]
    rows = rows[draw.permutation(len(rows))[:HELDOUT]]
    there = rows != pieces["[PAD]"]
    ordinary = there & (rows != pieces["[CLS]"]) & (rows != pieces["[SEP]"])
    chosen, kind = (draw.random(rows.shape) < RATE) & ordinary, draw.random(rows.shape)
    shown = np.where(chosen & (kind < 0.8), pieces["[MASK]"], rows)
    shown = np.where(chosen & (kind >= 0.9), draw.integers(pieces["[MASK]"] + 1, len(pieces), rows.shape), shown)
    return {"input_ids": shown, "labels": np.where(chosen, rows, -100), "attention_mask": there.astype(np.int32)}


def write(corpus: str, output: Path) -> None:
    """Write ``blocks.npy`` and ``heldout.npz`` to ``output``, which has the corpus's vocab.txt."""
    pieces = {piece: i for i, piece in enumerate((output / "vocab.txt").read_text(encoding="utf-8").splitlines())}
    found = Corpus(corpus)
    np.save(output / "blocks.npy", blocks(found, pieces))
    np.savez(output / "heldout.npz", **heldout(found, pieces))


if __name__ == "__main__":
    write(sys.argv[1], Path(sys.argv[2]))
