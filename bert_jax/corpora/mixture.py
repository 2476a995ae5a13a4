"""Mixtures of corpora (languages, domains, old and new text), and the share of the rows from each (``shares``).

Each corpus is a store with held-out documents of its own, and supplies a fixed share of the training rows
(``rows.mixture``).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from bert_jax.configuration import nearest
from bert_jax.corpora.source import Piece, Skipped, Source
from bert_jax.corpora.store import Corpus
from bert_jax.errors import UserError
from bert_jax.records import Document

if TYPE_CHECKING:
    from bert_jax.text.tokenizer import Tokenizer

TURN = 1024  # the number of rows in which the shares are exact; a share is a multiple of 1 / TURN


@dataclasses.dataclass(frozen=True)
class Mixture:
    """One or more corpora by name, and the share of the training rows that each supplies."""

    corpora: Mapping[str, Corpus]
    shares: Mapping[str, float]  # add up to 1; a corpus with share 0 is evaluated, never trained on

    @classmethod
    def alone(cls, corpus: Corpus) -> Mixture:
        """Return a mixture of one corpus, without a name."""
        return cls({"": corpus}, {"": 1.0})

    @classmethod
    def of(cls, corpora: Mapping[str, Corpus], weights: Mapping[str, float | None], temperature: float) -> Mixture:
        """Return a mixture whose shares follow the weights, or the numbers of tokens and a temperature (``shares``)."""
        sizes = {name: corpus.split("train").num_tokens for name, corpus in corpora.items()}
        return cls(corpora, shares(weights, sizes, temperature))

    @property
    def fingerprint(self) -> str:
        """Return the hash of all corpora and shares; for a single corpus, the fingerprint of the corpus."""
        if len(self.corpora) == 1:
            return next(iter(self.corpora.values())).fingerprint
        facts = [[name, corpus.fingerprint, self.shares[name]] for name, corpus in self.corpora.items()]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def words_of_epoch(self, weights: Mapping[str, float] | None) -> float:
        """Return the words of an epoch of rows in which each corpus has its share of the tokens.

        ``weights``: the shares, up to a factor, if they are not those of the mixture.

        Raises ``UserError`` if a corpus was built without a count of its words.
        """
        shares = normalised(weights) if weights else self.shares
        trained = {name: self.corpora[name].split("train") for name, share in shares.items() if share}
        for name, split in trained.items():
            if split.num_words is None:
                raise UserError(
                    f"config.checkpoints.at counts words, and the corpus {self.corpora[name].folder} was built by a "
                    "version that did not count them; build it again, or give tokens"
                )
        words = sum(shares[name] * (split.num_words or 0) / split.num_tokens for name, split in trained.items())
        return words * sum(split.num_tokens for split in trained.values())

    def check_columns(self, names: Iterable[str]) -> None:
        """Raise ``UserError`` if a corpus lacks one of the columns ``names``."""
        names = list(names)
        for corpus in self.corpora.values():
            corpus.check_columns(names)

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Raise ``UserError`` unless all corpora were made with this vocabulary."""
        for corpus in self.corpora.values():
            corpus.check_tokenizer(tokenizer)


def check_weights(weights: Mapping[str, float | None], temperature: float) -> None:
    """Raise ``UserError`` if a weight is negative or missing beside others, all are 0, or the temperature is bad."""
    given = {name: weight for name, weight in weights.items() if weight is not None}
    if given and len(given) < len(weights):
        raise UserError(
            f"config.corpus.parts gives a weight to {', '.join(given)} and none to "
            f"{', '.join(n for n in weights if n not in given)}; give every part a weight, or none to use a temperature"
        )
    bad = {name: weight for name, weight in given.items() if not 0 <= weight < math.inf}
    if bad or (given and not any(given.values())):
        raise UserError(
            f"weights of config.corpus.parts must be positive numbers, or 0 for a part that is only evaluated; found "
            f"{bad or 'only 0'}"
        )
    _check_small(given, "the weight of config.corpus.parts.")
    if not 0.1 <= temperature < math.inf:
        raise UserError(f"config.corpus.temperature is {temperature}; 0.1 or more is needed, 1 changes nothing")


def check_shares(weights: Mapping[str, Any], parts: Iterable[str], where: str) -> None:
    """Raise ``UserError`` unless ``weights``, called ``where``, are numbers for all ``parts``, not only 0."""
    if not (parts := list(parts)):
        raise UserError(f"{where} is set, and the corpus has no parts; leave it out, or name config.corpus.parts")
    if unknown := [name for name in weights if name not in parts]:
        raise UserError(f"{where} names {unknown[0]!r}, no part of the corpus; {nearest(unknown[0], parts)}")
    if missing := [name for name in parts if name not in weights]:
        raise UserError(f"{where} lacks {', '.join(missing)}; give every part one, 0 to leave it out of the phase")
    number = (type(weight) in (int, float) and 0 <= weight < math.inf for weight in weights.values())
    if not all(number) or not any(weights.values()):
        raise UserError(f"{where} is {dict(weights)}; numbers of 0 or more are needed, and one above 0")
    _check_small(weights, f"{where}.")


def _check_small(weights: Mapping[str, float], where: str) -> None:
    """Raise ``UserError`` for a weight above 0 that, rounded, gives none of ``TURN`` rows."""
    for name, weight in weights.items():
        if 0 < weight < 0.5 / TURN * sum(weights.values()):
            raise UserError(
                f"{where}{name} is {weight:g}, less than half of one in {TURN:,} rows, in which shares are counted; "
                "give more, or 0 to leave it out"
            )


def shares(weights: Mapping[str, float | None], sizes: Mapping[str, int], temperature: float) -> dict[str, float]:
    """Return the share of each corpus: its weight over the sum of all weights.

    Without weights, a corpus with ``size`` tokens weighs ``size ** (1 / temperature)``. Temperature 1 keeps the
    proportions of the sizes; a higher temperature gives small corpora a larger share (multilingual BERT: 1 / 0.7).
    """
    raw = {name: sizes[name] ** (1 / temperature) if weight is None else weight for name, weight in weights.items()}
    return normalised(raw)


def normalised(weights: Mapping[str, float]) -> dict[str, float]:
    """Return the share of each corpus: its weight over the sum of all."""
    return {name: weight / sum(weights.values()) for name, weight in weights.items()}


@dataclasses.dataclass(frozen=True)
class JoinedSource:
    """Reads several named sources as one source, to learn the vocabulary that they share."""

    sources: tuple[tuple[str, Source], ...]

    def pieces(self) -> list[Piece]:
        return [
            piece._replace(name=f"{name}:{piece.name}") for name, source in self.sources for piece in source.pieces()
        ]

    def read(self, piece: Piece) -> Iterator[Document | Skipped]:
        name, _, rest = piece.name.partition(":")
        yield from dict(self.sources)[name].read(piece._replace(name=rest))

    def fingerprint(self) -> str:
        facts = [f"{name} {source.fingerprint()}" for name, source in self.sources]
        return hashlib.sha256("\n".join(facts).encode()).hexdigest()

    def describe(self) -> dict[str, Any]:
        return {"source": "mixture", "parts": {name: source.describe() for name, source in self.sources}}
