"""Finds contexts in which a word has nearly the same meaning, by the cosine of its contextual vectors."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.errors import UserError
from bert_jax.features.extract import LAYERS, SENTENCE, Extractor, TextFeatures
from bert_jax.features.inputs import Item
from bert_jax.tasks.metrics.retrieval import Nearest
from bert_jax.text.marks import is_ideograph


def check_layer(name: str) -> None:
    """Raise ``UserError`` unless ``name`` is a layer that gives one vector for each token."""
    allowed = [layer for layer in LAYERS if layer not in (*SENTENCE, "all")]
    if name not in allowed:
        raise UserError(f"--layer={name} has no vector of a word; allowed: {', '.join(allowed)}")


def find_neighbours(
    extractor: Extractor,
    word: str,
    texts: Sequence[str],
    corpus: Iterable[Item],
    best: int = 10,
    ignore_case: bool = True,
) -> tuple[list[dict[str, Any]], Counter[str]]:
    """Return the ``best`` nearest contexts of ``word`` in ``corpus``, for its first occurrence in each of ``texts``.

    Occurrences in ``texts`` themselves are left out, and equal texts of the corpus count once.

    Args:
      extractor: computes token vectors of one layer.

    Returns:
      A record for each of ``texts``: the ``text``, where the word ``start``s and ``stop``s in it, and ``neighbours``,
      the nearest first, each with ``score`` (the cosine), ``id``, ``text``, ``start`` and ``stop``. And counts of the
      corpus: its ``texts``, the ``occurrences`` of the word, and those ``beyond`` the tokens that the model reads.

    Raises:
      UserError: one of ``texts`` does not have the word, or no text of the corpus has it.
    """
    pattern = whole_word(word, ignore_case)
    without = [text for text in texts if not pattern.search(text)]
    if without or not texts:
        raise UserError(f"{without[0]!r} does not have the word {word!r}" if without else "no text with the word")
    queries: dict[str, tuple[dict[str, Any], np.ndarray | None]] = {}
    for record, vector in _occurrences(extractor, [Item(str(i), text) for i, text in enumerate(texts)], pattern):
        queries.setdefault(record.pop("id"), (record, vector))  # the first of each text
    directions = [vector for _, vector in queries.values() if vector is not None]
    if len(directions) < len(texts):
        raise UserError(f"{word!r} comes after the {extractor.max_length} tokens that are read; shorten the text")
    counts, seen = Counter(texts=0, occurrences=0, beyond=0), set(texts)

    def having() -> Iterator[Item]:
        """Yield each different text of the corpus that has the word, so that the other texts are not even encoded."""
        for item in corpus:
            counts["texts"] += 1
            if pattern.search(item.text) and item.text not in seen:
                seen.add(item.text)
                yield Item(item.id, item.text)

    nearest, found = Nearest(np.stack(directions), best), []
    for record, vector in _occurrences(extractor, having(), pattern):
        counts["beyond" if vector is None else "occurrences"] += 1
        if vector is not None:
            found.append(record)
            nearest.add(vector[None])
    if not found:
        raise UserError(f"none of the {counts['texts']:,} texts has the word {word!r} beside those asked for")
    neighbours = (
        [{"score": score, **found[place]} for score, place in zip(*of_query, strict=True)]
        for of_query in zip(nearest.scores.tolist(), nearest.places.tolist(), strict=True)
    )
    return [record | {"neighbours": n} for (record, _), n in zip(queries.values(), neighbours, strict=True)], counts


def whole_word(word: str, ignore_case: bool) -> re.Pattern[str]:
    """Return a pattern that finds ``word`` unless it is part of a longer word.

    A letter or digit beside it makes a longer word, except beside an ideograph.
    """
    if not word.strip():
        raise UserError("--word is empty; give the word to compare")
    before, after = ("" if is_ideograph(edge) or not edge.isalnum() else r"\w" for edge in (word[0], word[-1]))
    left, right = f"(?<!{before})" if before else "", f"(?!{after})" if after else ""
    return re.compile(left + re.escape(word) + right, re.IGNORECASE if ignore_case else 0)


def _occurrences(
    extractor: Extractor, items: Iterable[Item], pattern: re.Pattern[str]
) -> Iterator[tuple[dict[str, Any], np.ndarray | None]]:
    """Yield a record and the vector of every occurrence of ``pattern``, None beyond the tokens that are read."""
    for features in extractor.run(items):
        item = features.item
        for match in pattern.finditer(item.text):
            place = {"start": match.start(), "stop": match.end()}
            yield {"id": item.id, "text": item.text, **place}, _word_vector(features, *match.span())


def _word_vector(features: TextFeatures, start: int, stop: int) -> np.ndarray | None:
    """Return the mean vector [D] float32 of the tokens that overlap text[start:stop]. If no token does, return None."""
    begins, ends = features.tokens.offsets.T
    of_word = (begins < stop) & (ends > start)
    if not of_word.any():
        return None
    [vectors] = features.vectors.values()
    return vectors[of_word].astype(np.float32).mean(axis=0)


def as_table(record: Mapping[str, Any]) -> str:
    """Return the query's text, followed by one line for each neighbour, with the word in brackets."""

    def show(one: Mapping[str, Any]) -> str:
        return mark(one["text"], one["start"], one["stop"])

    return "\n".join([show(record), *(f"  {n['score']:.3f}  {show(n)}  ({n['id']})" for n in record["neighbours"])])


def mark(text: str, start: int, stop: int, around: int = 60) -> str:
    """Return the word in brackets with up to ``around`` characters of the text on each side."""
    left, right = text[max(0, start - around) : start], text[stop : stop + around]
    left = f"...{left}" if start > around else left
    right = f"{right}..." if len(text) > stop + around else right
    return f"{left}[{text[start:stop]}]{right}"


def summary(word: str, counts: Mapping[str, int]) -> str:
    """Return a line that says what was searched."""
    line = f"{counts['occurrences']:,} other occurrences of {word!r} in {counts['texts']:,} texts"
    if counts["beyond"]:
        line += f"; {counts['beyond']:,} more come after the length that is read: cut the texts into sentences"
    return line
