"""Vectors of words for ``senses``: of occurrences, the mean of those of each word, and word2vec's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.features.extract import Extractor, TextFeatures
from bert_jax.features.inputs import Item
from bert_jax.interchange.trained_model import TrainedModel

CONTEXT = 30  # words on either side of an occurrence that the model sees
WINDOW, LEAST_COUNT, EPOCHS = 5, 5, 5  # as in the program of word2vec's authors
HOMONYMS = ("bank", "spring", "light", "match", "bear", "fair", "watch", "mean")
KEPT = 300  # occurrences of a homonym
Row = tuple[str, ...]  # words in lower case


class Occurrence(NamedTuple):
    """A word in its sentence."""

    words: Row
    place: int
    sense: str
    document: str


class OfModel(NamedTuple):
    """What is computed with a model."""

    occurrences: dict[str, np.ndarray]  # word with two senses -> [occurrences, D]
    averaged: dict[str, np.ndarray]  # word of the text -> [D]
    homonyms: dict[str, tuple[list[str], np.ndarray]]  # homonym -> its rows, [occurrences, D]


def word_vectors(features: TextFeatures, words: Row, layer: str) -> np.ndarray:
    """Return the mean vector of each word's pieces, [words, D]; NaN for words that were cut off.

    ``features`` are those of the words joined by spaces.
    """
    offsets, vectors = features.tokens.offsets, features.vectors[layer]
    inside = offsets[:, 1] > offsets[:, 0]
    starts = np.cumsum([0, *(len(word) + 1 for word in words[:-1])])
    owners = np.searchsorted(starts, offsets[inside, 0], side="right") - 1
    sums = np.zeros((len(words), vectors.shape[1]))
    np.add.at(sums, owners, vectors[inside])
    counts = np.bincount(owners, minlength=len(words))
    return np.where(counts[:, None], sums / np.maximum(counts, 1)[:, None], np.nan)


def of_model(
    model: TrainedModel,
    layer: str,
    found: Mapping[str, Sequence[Occurrence]],
    rows: Sequence[Row],
    counts: Counter[str],
) -> OfModel:
    """Return the contextual vectors of occurrences, and the mean of those of each word of the text."""
    extractor = Extractor(model, [layer])
    cut = {word: [_around(one, extractor) for one in of] for word, of in found.items()}
    every = [one for of in cut.values() for one in of]
    vectors = [
        of[place] for of, (_, place) in zip(_run(extractor, [row for row, _ in every], layer), every, strict=True)
    ]
    bounds = np.cumsum([len(of) for of in cut.values()])[:-1]
    occurrences = dict(zip(cut, np.split(np.array(vectors), bounds), strict=True))
    numbers = {word: number for number, word in enumerate(counts)}
    sums, seen = np.zeros((len(counts), len(vectors[0]))), np.zeros(len(counts))
    homonyms: dict[str, list[tuple[str, np.ndarray]]] = {}
    for row, of in zip(rows, _run(extractor, rows, layer), strict=True):
        read = [place for place, word in enumerate(row) if word in numbers and not np.isnan(of[place, 0])]
        ids = [numbers[row[place]] for place in read]
        np.add.at(sums, ids, of[read])
        np.add.at(seen, ids, 1)
        for place in read:
            if row[place] in HOMONYMS and len(homonyms.setdefault(row[place], [])) < KEPT:
                homonyms[row[place]].append((_shown(row, place), of[place]))
    averaged = {word: sums[number] / seen[number] for word, number in numbers.items() if seen[number]}
    kept = {word: ([text for text, _ in of], np.array([v for _, v in of])) for word, of in homonyms.items()}
    return OfModel(occurrences, averaged, kept)


def _run(extractor: Extractor, rows: Sequence[Row], layer: str) -> Iterator[np.ndarray]:
    items = (Item(str(number), " ".join(row)) for number, row in enumerate(rows))
    for row, features in zip(rows, extractor.run(items), strict=True):
        yield word_vectors(features, row, layer)


def _around(one: Occurrence, extractor: Extractor) -> tuple[Row, int]:
    """Return the words around an occurrence that the model can read, and its place among them."""
    row: Row = ()
    for width in (CONTEXT, CONTEXT // 2, CONTEXT // 4, 2, 0):
        first = max(0, one.place - width)
        row = one.words[first : one.place + width + 1]
        if len(extractor.model.tokenizer.encode(" ".join(row)).input_ids) <= extractor.max_length:
            break
    return row, one.place - first


def _shown(row: Row, place: int) -> str:
    return " ".join((*row[max(0, place - 6) : place], f"**{row[place]}**", *row[place + 1 : place + 7]))


def word2vec(rows: Sequence[Row], size: int, seed: int) -> dict[str, np.ndarray]:
    """Return the vectors [size] of the words of ``rows`` by gensim's skip-gram; one thread, so a seed says it all."""
    from gensim.models import Word2Vec

    options = {"sg": 1, "window": WINDOW, "min_count": LEAST_COUNT, "epochs": EPOCHS, "workers": 1, "seed": seed}
    vectors = Word2Vec(rows, vector_size=size, **options).wv
    return {word: vectors[word] for word in vectors.index_to_key}


def within(one: Occurrence) -> Row:
    """Return the words within 5 of an occurrence, without the word itself."""
    return (*one.words[max(0, one.place - WINDOW) : one.place], *one.words[one.place + 1 : one.place + 1 + WINDOW])


def window(one: Occurrence, vectors: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the mean vector of the words within 5 of an occurrence, without the word itself; 0 if none has one."""
    known = [vectors[word] for word in within(one) if word in vectors]
    return np.mean(known, axis=0) if known else np.zeros_like(next(iter(vectors.values())))
