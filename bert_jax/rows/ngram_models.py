"""N-gram models of masked or next tokens: baselines that a training curve has to beat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.rows import random
from bert_jax.rows.interfaces import Split

HIDDEN = -1  # stands for a neighbour that the model cannot see in the row
MAX_TOKENS = 20_000_000  # the most tokens that are counted, so that a large corpus takes only seconds
_FIT_SHARE = 20  # one position in 20 fits the interpolation weights instead of being counted
_ROUNDS = 15  # of the expectation maximisation that fits the weights
_BUCKETS = np.array([1, 2, 3, 5, 9, 17, 65])  # how often a context was seen; each range has its own weights


class Cloze(NamedTuple):
    """Predicted tokens and the neighbours from which they are predicted; each field is int64 [n]."""

    left: np.ndarray  # the token to the left, or HIDDEN if it is masked too or is a special token
    right: np.ndarray  # the same to the right; if next tokens are predicted, the second token to the left
    label: np.ndarray


def read_tokens(splits: Sequence[Split]) -> np.ndarray:
    """Return tokens of the splits, int64 [n], each split from its start, at most ``MAX_TOKENS`` in all."""
    lengths = [min(int(split.sentence_offsets[-1]), MAX_TOKENS // len(splits)) for split in splits]
    texts = [s.read(np.zeros(1, np.int64), np.full(1, n)) for s, n in zip(splits, lengths, strict=True)]
    return np.concatenate(texts).astype(np.int64)


def cloze_of_rows(rows: dict[str, np.ndarray], special_ids: tuple[int, ...]) -> Cloze:
    """Return the masked tokens of a batch of rows [B, L], with the neighbours that the model sees."""
    ids = rows["input_ids"].astype(np.int64)
    row, slot = np.nonzero(rows["masked_weights"])
    shown = ~np.isin(ids, special_ids)
    np.put_along_axis(shown, rows["masked_positions"], False, axis=1)  # selected tokens are never context
    padded = np.pad(np.where(shown, ids, HIDDEN), ((0, 0), (1, 1)), constant_values=HIDDEN)
    position = rows["masked_positions"][row, slot]
    return Cloze(padded[row, position], padded[row, position + 2], rows["masked_labels"][row, slot].astype(np.int64))


def next_tokens_of_rows(rows: dict[str, np.ndarray], cls: int, sep: int) -> Cloze:
    """Return all tokens of a batch of rows [B, L] except ``[CLS]``, each with the two tokens before it in its sequence.

    ``[CLS]`` counts as ``[SEP]``, as if another sequence had just ended. The token after a row, ``next_ids`` [B], is
    returned too, if it is known.
    """
    ids = rows["input_ids"].astype(np.int64)
    sequence = rows.get("sequence_ids", rows["attention_mask"])
    sequence = sequence * (rows["row_weights"][:, None] > 0)
    if "next_ids" in rows:
        ids = np.column_stack([ids, rows["next_ids"]])
        sequence = np.column_stack([sequence, sequence[:, -1]])
    before = [np.pad(np.where(ids == cls, sep, ids), ((0, 0), (n, 0)))[:, : ids.shape[1]] for n in (1, 2)]
    same = [np.pad(sequence, ((0, 0), (n, 0)))[:, : ids.shape[1]] == sequence for n in (1, 2)]
    predicted = (sequence > 0) & same[0]
    second = np.where(same[1], before[1], HIDDEN)
    return Cloze(before[0][predicted], second[predicted], ids[predicted])


def stream_of_rows(rows: dict[str, np.ndarray], cls: int) -> np.ndarray:
    """Return the tokens of all rows one after another, int64 [n], without ``[CLS]`` and padding."""
    ids = rows["input_ids"].astype(np.int64)
    return ids[(rows["attention_mask"] > 0) & (ids != cls)]


def cross_entropies(
    predicted: Cloze,
    tokens: np.ndarray,
    vocab_size: int,
    name: str = "trigram_cloze",
    context: tuple[int, int] = (-1, 1),
) -> dict[str, float]:
    """Return the cross-entropies, by name, with which n-gram models of ``tokens`` predict tokens.

    ``name`` is the name of the larger model; for ``context``, see ``TrigramCloze``.
    """
    model = TrigramCloze(tokens, vocab_size, context)
    return {
        "unigram_cross_entropy": float(-np.log(model.unigram[predicted.label]).mean()),
        f"{name}_cross_entropy": model.cross_entropy(predicted),
    }


class TrigramCloze:
    """A model p(w | left, right), interpolated from the counts of (left, w, right), (left, w), (w, right) and w.

    It uses deleted interpolation (Jelinek and Mercer 1980). There is one set of weights for each range of how often the
    context was seen. The weights are fitted by expectation maximisation on positions of the text that were left out of
    the counts.

    Attributes:
      unigram: [V] the probability of each piece from how often it is in the text, with one added to each number.
    """

    def __init__(self, tokens: np.ndarray, vocab_size: int, context: tuple[int, int] = (-1, 1)):
        """
        Args:
          tokens: int64 [n], the text; at least three tokens.
          context: the offsets of ``left`` and ``right`` from the token; (-1, -2) models the next token.
        """
        self._size = vocab_size
        self.unigram = (np.bincount(tokens, minlength=vocab_size) + 1.0) / (len(tokens) + vocab_size)
        first = -min(context)
        places = np.arange(first, first + len(tokens) - 2)
        all_positions = Cloze(tokens[places + context[0]], tokens[places + context[1]], tokens[places])
        fitting = random.integers(random.fold(random.key("cloze"), np.arange(len(tokens) - 2)), _FIT_SHARE) == 0
        counted = Cloze(*(x[~fitting] for x in all_positions))
        self._tables = [np.unique(keys, return_counts=True) for pair in self._keys(counted) for keys in pair]
        self._weights = np.full((len(_BUCKETS) + 1, 4), 0.25)
        probabilities, bucket = self._components(Cloze(*(x[fitting] for x in all_positions)))
        for _ in range(_ROUNDS):
            shares = np.nan_to_num(probabilities) * self._weights[bucket]
            shares /= np.maximum(shares.sum(axis=1, keepdims=True), 1e-300)
            for b in np.unique(bucket):
                self._weights[b] = shares[bucket == b].mean(axis=0)

    def cross_entropy(self, cloze: Cloze) -> float:
        """Return the mean cross-entropy in nats per token."""
        return float(-np.log(self.probability(cloze)).mean())

    def probability(self, cloze: Cloze) -> np.ndarray:
        """Return the probability of each label, float64 [n].

        For one context, the probabilities of all labels sum to 1.
        """
        probabilities, bucket = self._components(cloze)
        # A component whose context is hidden or was never seen gives its weight to the others.
        weights = self._weights[bucket] * np.isfinite(probabilities)
        return np.nansum(weights * probabilities, axis=1) / weights.sum(axis=1)

    def _keys(self, cloze: Cloze) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return (event, context) for the trigram and each of the two bigrams, as integers [n] to look up in tables."""
        left, right, label, size = *cloze, self._size
        both = left * size + right
        return [(both * size + label, both), (left * size + label, left), (right * size + label, right)]

    def _components(self, cloze: Cloze) -> tuple[np.ndarray, np.ndarray]:
        """Return the component probabilities [n, 4] and, for each label, an index [n] into ``_BUCKETS``.

        The index says how often the text has the context (left, right). A component is NaN where its context is hidden
        or unseen.
        """
        left_shown, right_shown = cloze.left != HIDDEN, cloze.right != HIDDEN
        probabilities, seen = [], []
        for i, ((event, context), shown) in enumerate(
            zip(self._keys(cloze), (left_shown & right_shown, left_shown, right_shown), strict=True)
        ):
            events, contexts = _look_up(self._tables[2 * i], event), _look_up(self._tables[2 * i + 1], context)
            contexts = np.where(shown, contexts, 0)
            with np.errstate(invalid="ignore"):
                probabilities.append(np.where(contexts > 0, events / np.where(contexts > 0, contexts, 1), np.nan))
            seen.append(contexts)
        probabilities.append(self.unigram[cloze.label])
        return np.stack(probabilities, axis=1), np.searchsorted(_BUCKETS, seen[0], side="right")


def _look_up(table: tuple[np.ndarray, np.ndarray], keys: np.ndarray) -> np.ndarray:
    known, counts = table
    where = np.minimum(np.searchsorted(known, keys), len(known) - 1)
    return np.where(known[where] == keys, counts[where], 0)
