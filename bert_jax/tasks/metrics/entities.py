"""Computes precision, recall and F1 of whole entities in tagged sentences, as ``seqeval`` defines them.

A tag is ``O``, or a prefix, a dash and a type (``B-PER``; a bare ``B`` has the type ``_``). An entity is right if its
type, its start and its end are right.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np

from bert_jax.configuration import choose
from bert_jax.errors import UserError, few
from bert_jax.tasks.metrics.counting import precision_recall_f1, ratio

Sentences = Sequence[Sequence[str]]


class _Entity(NamedTuple):
    """An entity: words [start, end) of the sentence with number ``sentence``."""

    sentence: int
    type: str
    start: int
    end: int  # exclusive


class _Scheme(NamedTuple):
    """A tagging scheme, used by mode "strict". Each field is a string whose characters are tag prefixes."""

    first: str  # prefixes with which an entity may begin
    inside: str  # prefixes that continue an entity of the same type
    single: str  # prefixes after which the entity cannot continue
    last: str  # prefixes with which an entity may end


_SCHEMES = {
    "IOB2": _Scheme(first="B", inside="I", single="", last="BI"),
    "IOE2": _Scheme(first="IE", inside="IE", single="E", last="E"),
    "IOBES": _Scheme(first="BS", inside="IE", single="ES", last="ES"),
    "BILOU": _Scheme(first="BU", inside="IL", single="LU", last="LU"),
}
_CONLL_PREFIXES = "BIES"
TAG = re.compile(r"O|[BIESLU](-.+)?")


def entity_metrics(
    labels: Sentences, predictions: Sentences, mode: Literal["conll", "strict"] = "conll", scheme: str | None = None
) -> dict[str, float]:
    """Return precision, recall and f1 over all entities, the accuracy of the tags, and scores of each entity type.

    The scores of the type PER, if it occurs, are PER_precision, PER_recall, PER_f1 and PER_support.

    Mode "conll" reads tags as conlleval does: an ``I`` that follows an ``O`` or a tag of another type begins an entity,
    so IOB1, IOB2 and IOBES can all be read. Mode "strict" counts only entities that follow the scheme (IOB2, IOE2,
    IOBES or BILOU) from start to end. If the scheme is None, it is inferred from the prefixes.

    Raises ``UserError`` for malformed tags, an unknown scheme, and prefixes that fit no scheme.
    """
    true, predicted = (set(found) for found in _both(labels, predictions, mode, scheme))
    result = _scores(true, predicted)
    right = sum(a == b for x, y in zip(labels, predictions, strict=True) for a, b in zip(x, y, strict=True))
    result["accuracy"] = ratio(right, sum(map(len, labels)))
    for type_ in sorted({entity.type for entity in true | predicted}):
        of_type = [{entity for entity in side if entity.type == type_} for side in (true, predicted)]
        result |= {f"{type_}_{name}": value for name, value in _scores(*of_type).items()}
        result[f"{type_}_support"] = float(len(of_type[0]))
    return result


def entity_counts(labels: Sentences, predictions: Sentences, mode: str, scheme: str | None) -> np.ndarray:
    """Return how many entities of each sentence are right, predicted and true, [sentences, 3]."""
    true, predicted = (set(found) for found in _both(labels, predictions, mode, scheme))
    counts = np.zeros((len(labels), 3), np.int64)
    for i, found in enumerate((true & predicted, predicted, true)):
        np.add.at(counts[:, i], [entity.sentence for entity in found], 1)
    return counts


def conll_entities(sentences: Sentences) -> Iterator[_Entity]:
    """Yield entities as conlleval reads them, whatever the scheme."""
    for number, tags in enumerate(sentences):
        start, before, type_before = 0, "O", ""
        for i, (prefix, type_) in enumerate([*map(_split, tags), ("O", "")]):
            broken = type_ != type_before or before in "ES" or prefix in "BS"
            if before != "O" and broken:
                yield _Entity(number, type_before, start, i)
            if prefix != "O" and broken:
                start = i
            before, type_before = prefix, type_


def _strict_entities(sentences: Sentences, scheme: _Scheme) -> Iterator[_Entity]:
    """Yield only the entities whose tags follow the scheme from the first to the last."""
    for number, tags in enumerate(sentences):
        pairs = [_split(tag) for tag in tags]
        i = 0
        while i < len(pairs):
            start, (prefix, type_) = i, pairs[i]
            i += 1
            if prefix not in scheme.first:
                continue
            while i < len(pairs) and prefix not in scheme.single and _goes_on(pairs[i], type_, scheme):
                prefix = pairs[i][0]
                i += 1
            if prefix in scheme.last:
                yield _Entity(number, type_, start, i)


def _goes_on(pair: tuple[str, str], type_: str, scheme: _Scheme) -> bool:
    return pair[0] in scheme.inside and pair[1] == type_


def _both(labels: Sentences, predictions: Sentences, mode: str, scheme: str | None) -> list[Iterable[_Entity]]:
    prefixes = _prefixes([*labels, *predictions])
    if mode == "conll":
        if not prefixes <= set(_CONLL_PREFIXES):
            raise UserError(f"tags begin with {_listed(prefixes)}; mode conll reads B, I, E, S and O: take mode strict")
        return [conll_entities(labels), conll_entities(predictions)]
    spelled = choose("scheme of tags", scheme, _SCHEMES) if scheme else _detect(prefixes)
    if not prefixes <= set(spelled.first + spelled.inside):
        allowed = _listed(set(spelled.first + spelled.inside))
        raise UserError(f"tags begin with {_listed(prefixes)}; the scheme {scheme} allows {allowed} and O")
    return [_strict_entities(labels, spelled), _strict_entities(predictions, spelled)]


def _detect(prefixes: set[str]) -> _Scheme:
    """Return the first scheme that has all these prefixes.

    If ``seqeval`` can infer a scheme from the prefixes, it infers the same scheme.
    """
    fitting = [scheme for scheme in _SCHEMES.values() if prefixes <= set(scheme.first + scheme.inside)]
    if not fitting or prefixes == {"I"}:
        kind = "more than one scheme" if fitting else "no scheme"
        raise UserError(f"tags begin with {_listed(prefixes)}: that fits {kind}; name one of {', '.join(_SCHEMES)}")
    return fitting[0]


def _prefixes(sentences: Iterable[Sequence[str]]) -> set[str]:
    """Return all prefixes that occur, except O. Raises ``UserError`` with a list of malformed tags."""
    tags = Counter(tag for sentence in sentences for tag in sentence)
    wrong = [tag for tag in tags if not TAG.fullmatch(tag)]
    if wrong:
        some = few([repr(tag) for tag in sorted(wrong)])
        raise UserError(
            f"{len(wrong)} tags belong to no known scheme: {some}; allowed: O and tags such as B-PER or I-PER"
        )
    return {tag[0] for tag in tags if tag != "O"}


def _split(tag: str) -> tuple[str, str]:
    return (tag[0], "" if tag == "O" else tag[2:] or "_")


def _scores(true: set[_Entity], predicted: set[_Entity]) -> dict[str, float]:
    return precision_recall_f1(len(true & predicted), len(predicted), len(true))


def _listed(prefixes: set[str]) -> str:
    return ", ".join(sorted(prefixes))
