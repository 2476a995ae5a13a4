"""Finds contexts in which a word has nearly the same meaning, by the cosine of its contextual vectors."""

from __future__ import annotations

import dataclasses
import heapq
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from bert_jax.errors import UserError
from bert_jax.features.extract import Extractor, TextFeatures
from bert_jax.features.inputs import Item
from bert_jax.features.layers import LAYERS
from bert_jax.tasks.metrics.nearest import unit


@dataclasses.dataclass(frozen=True)
class Neighbour:
    """An occurrence of the word in a text of the corpus, with its similarity to the query."""

    score: float  # cosine
    id: str  # the id of the text
    text: str
    start: int  # the word is text[start:stop]
    stop: int


@dataclasses.dataclass(frozen=True)
class NearestContexts:
    """The nearest contexts of one query occurrence, nearest first. The query is text[start:stop]."""

    text: str
    start: int
    stop: int
    neighbours: tuple[Neighbour, ...]


@dataclasses.dataclass
class NeighbourCounts:
    texts: int = 0  # number of texts of the corpus
    occurrences: int = 0
    beyond: int = 0  # occurrences after the end of the tokens that the model reads


def check_layer(name: str) -> None:
    """Raise ``UserError`` unless ``name`` is a layer that gives one vector for each token."""
    allowed = [layer for layer, kind in LAYERS.items() if not kind.is_sentence and layer != "all"]
    if name not in allowed:
        raise UserError(f"--layer={name} has no vector of a word; allowed: {', '.join(allowed)}")


def find_neighbours(
    extractor: Extractor,
    word: str,
    texts: Sequence[str],
    corpus: Iterable[Item],
    best: int = 10,
    ignore_case: bool = True,
) -> tuple[list[NearestContexts], NeighbourCounts]:
    """Return the ``best`` nearest contexts of ``word`` in ``corpus``, for its first occurrence in each of ``texts``.

    Occurrences in ``texts`` themselves are left out, and equal texts of the corpus count once.

    Args:
      extractor: computes token vectors of one layer.

    Raises:
      UserError: one of ``texts`` does not have the word, or no text of the corpus has it.
    """
    pattern = whole_word(word, ignore_case)
    without = [text for text in texts if not pattern.search(text)]
    if without or not texts:
        raise UserError(f"{without[0]!r} does not have the word {word!r}" if without else "no text with the word")
    counts = NeighbourCounts()
    queries = list(
        _vectors(extractor, [Item(str(i), text) for i, text in enumerate(texts)], pattern, counts, first=True)
    )
    if len(queries) < len(texts):
        raise UserError(f"{word!r} comes after the {extractor.max_length} tokens that are read; shorten the text")
    counts = NeighbourCounts()
    # One heap for each query, with its worst neighbour at [0]; if scores are equal, the first in the corpus is better.
    heaps: list[list[tuple[float, int, Neighbour]]] = [[] for _ in texts]
    asked = set(texts)
    occurrences = _vectors(extractor, _having(pattern, corpus, asked, counts), pattern, counts)
    directions = np.stack([unit(vector) for _, _, _, vector in queries])
    for number, (item, start, stop, vector) in enumerate(occurrences):
        for heap, score in zip(heaps, (directions @ unit(vector)).tolist(), strict=True):
            entry = (score, -number, Neighbour(score, item.id, item.text, start, stop))
            if len(heap) < best:
                heapq.heappush(heap, entry)
            else:
                heapq.heappushpop(heap, entry)
    if not counts.occurrences:
        raise UserError(f"none of the {counts.texts:,} texts has the word {word!r} beside those asked for")
    found = [
        NearestContexts(item.text, start, stop, tuple(neighbour for _, _, neighbour in sorted(heap, reverse=True)))
        for (item, start, stop, _), heap in zip(queries, heaps, strict=True)
    ]
    return found, counts


def whole_word(word: str, ignore_case: bool) -> re.Pattern[str]:
    """Return a pattern that finds ``word`` unless it is part of a longer word.

    A letter or digit beside it makes a longer word, except beside an ideograph.
    """
    if not word.strip():
        raise UserError("--word is empty; give the word to compare")
    before, after = ("" if _is_ideograph(edge) or not edge.isalnum() else r"\w" for edge in (word[0], word[-1]))
    left, right = f"(?<!{before})" if before else "", f"(?!{after})" if after else ""
    return re.compile(left + re.escape(word) + right, re.IGNORECASE if ignore_case else 0)


def _is_ideograph(character: str) -> bool:
    return unicodedata.name(character, "").startswith("CJK ")


def _having(
    pattern: re.Pattern[str], found: Iterable[Item], asked: set[str], counts: NeighbourCounts
) -> Iterator[Item]:
    """Yield each different text of the corpus that has the word, so that the other texts are not even encoded."""
    seen: set[int] = set()
    for item in found:
        counts.texts += 1
        if not pattern.search(item.text) or item.text in asked or hash(item.text) in seen:
            continue
        seen.add(hash(item.text))
        yield Item(item.id, item.text)


def _vectors(
    extractor: Extractor, texts: Iterable[Item], pattern: re.Pattern[str], counts: NeighbourCounts, first: bool = False
) -> Iterator[tuple[Item, int, int, np.ndarray]]:
    """Yield (text, start, stop, vector) for every occurrence of ``pattern``; if ``first``, for the first in each text.

    ``counts`` is increased by the occurrences that have a vector and by those beyond the model's positions.
    """
    for features in extractor.run(texts):
        for match in pattern.finditer(features.item.text):
            vector = word_vector(features, *match.span())
            counts.occurrences += vector is not None
            counts.beyond += vector is None
            if vector is not None:
                yield features.item, *match.span(), vector
            if first:
                break


def word_vector(features: TextFeatures, start: int, stop: int) -> np.ndarray | None:
    """Return the mean vector [D] float32 of the tokens that overlap text[start:stop]. If no token does, return None."""
    begins, ends = features.tokens.offsets.T
    of_word = (begins < stop) & (ends > start)
    if not of_word.any():
        return None
    [vectors] = features.vectors.values()
    return vectors[of_word].astype(np.float32).mean(axis=0)


def as_record(found: NearestContexts) -> dict[str, Any]:
    """Return a record for JSON."""
    return dataclasses.asdict(found)


def as_table(found: NearestContexts) -> str:
    """Return the query's text, followed by one line for each neighbour, with the word in brackets."""
    lines = [marked(found.text, found.start, found.stop)]
    lines += [f"  {n.score:.3f}  {marked(n.text, n.start, n.stop)}  ({n.id})" for n in found.neighbours]
    return "\n".join(lines)


def marked(text: str, start: int, stop: int, around: int = 60) -> str:
    """Return the word in brackets with up to ``around`` characters of the text on each side."""
    left, right = text[max(0, start - around) : start], text[stop : stop + around]
    left = f"...{left}" if start > around else left
    right = f"{right}..." if len(text) > stop + around else right
    return f"{left}[{text[start:stop]}]{right}"


def summary(word: str, counts: NeighbourCounts) -> str:
    """Return a line that says what was searched."""
    line = f"{counts.occurrences:,} other occurrences of {word!r} in {counts.texts:,} texts"
    if counts.beyond:
        line += f"; {counts.beyond:,} more come after the length that is read: cut the texts into sentences"
    return line
