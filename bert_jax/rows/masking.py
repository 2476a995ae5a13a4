"""Masked language modelling (Devlin et al. 2019, section 3.1): a strategy *selects*, one place corrupts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from bert_jax import configuration
from bert_jax.configuration import check_fields
from bert_jax.errors import UserError
from bert_jax.rows import random

Bools = npt.NDArray[np.bool_]
Ids = npt.NDArray[np.int32]


@dataclasses.dataclass(frozen=True)
class TokenFacts:
    """What rows need to know of a tokenizer."""

    pad: int
    cls: int
    sep: int
    mask: int
    vocab_size: int
    is_continuation: Bools | None = None  # [V] pieces that go on with a word; for strategies that select words

    @classmethod
    def of(cls, tokenizer: Any) -> TokenFacts:
        """Facts of a ``text.tokenizer.Tokenizer``."""
        t = tokenizer
        return cls(t.pad_id, t.cls_id, t.sep_id, t.mask_id, t.size, t.is_continuation)


@dataclasses.dataclass(frozen=True)
class MaskingConfig:
    """How many tokens are predicted, which, and what the model sees in their place."""

    strategy: str = "token"
    rate: float = 0.15  # of the tokens of a row, special tokens included in the count
    mask_share: float = 0.8  # of the selected tokens become [MASK]
    random_share: float = 0.1  # become a random piece of the whole vocabulary; the rest is kept
    max_predictions: int | None = None  # P at most, of a row; None: as many as a full row needs

    def __post_init__(self) -> None:
        configuration.choose("masking strategy", self.strategy, STRATEGIES)
        where = "config.objective.masking"
        check_fields(self, where, "more than 0 and at most 1 is needed", "rate", sound=lambda rate: 0 < rate <= 1)
        if min(self.mask_share, self.random_share) < 0 or self.mask_share + self.random_share > 1 + 1e-9:
            raise UserError(
                f"{where}.mask_share is {self.mask_share} and random_share {self.random_share}; both have to be "
                "at least 0, and their sum at most 1"
            )
        check_fields(
            self, where, "at least 1, or None, is needed", "max_predictions", sound=lambda n: n is None or n >= 1
        )

    def predictions(self, max_length: int) -> int:
        """P, the number of masked positions that a row of one pair has room for: static for a length."""
        return self.max_predictions or max(1, round(self.rate * max_length))

    def counts(self, lengths: np.ndarray, candidates: np.ndarray, room: int) -> np.ndarray:
        """How many positions are masked, int64 [n], of ``lengths`` tokens of which ``candidates`` may be."""
        counts = np.maximum(1, np.rint(self.rate * lengths)).astype(np.int64)  # rint rounds as Python's round does
        return np.minimum(counts, np.minimum(room, candidates))


class Strategy(Protocol):
    """Selects the positions to predict."""

    def __call__(self, ids: Ids, candidates: Bools, counts: np.ndarray, keys: random.Bits, facts: TokenFacts) -> Bools:
        """Selected positions.

        Args:
          ids: [n, L] rows before corruption.
          candidates: [n, L] positions that may be selected: all but special tokens and padding.
          counts: [n] how many to select; never more than a row has candidates.
          keys: [n] one random key a row; a row's selection depends on its own key and ids alone.

        Returns:
          [n, L], within ``candidates``, at most ``counts`` true in a row.
        """
        ...


def select_tokens(ids: Ids, candidates: Bools, counts: np.ndarray, keys: random.Bits, facts: TokenFacts) -> Bools:
    """Exactly ``counts`` positions, uniformly without replacement: the candidates with the smallest hashes."""
    positions = np.arange(ids.shape[1])
    bits = random.fold(keys[:, None], positions)
    bits &= ~np.uint64(0xFFFF)
    bits |= positions.astype(np.uint64)  # no two hashes of a row are equal
    bits[~candidates] = np.iinfo(np.uint64).max
    threshold = np.take_along_axis(np.sort(bits, axis=1), counts[:, None] - 1, axis=1)
    return bits <= threshold


# A further strategy is a function in a file of its own (rows/masking_<name>.py) and a line here.
STRATEGIES: Mapping[str, Strategy] = {"token": select_tokens}


def mask_rows(
    ids: Ids,
    candidates: Bools,
    lengths: np.ndarray,
    keys: random.Bits,
    config: MaskingConfig,
    facts: TokenFacts,
    room: int | None = None,
) -> dict[str, np.ndarray]:
    """The features of masked language modelling; ``ids`` are left as they are.

    Args:
      ids: [n, L].
      candidates: [n, L] positions that may be masked; at least one a row.
      lengths: [n] tokens of a row, special tokens included.
      keys: [n].
      room: P; None: that of a row of one pair.

    Returns:
      ``input_ids`` [n, L] corrupted; ``masked_positions``, ``masked_labels`` int32 and ``masked_weights`` float32
      [n, P], positions ascending, unused places 0.
    """
    room = config.predictions(ids.shape[1]) if room is None else room
    counts = config.counts(lengths, candidates.sum(axis=1), room)
    strategy = STRATEGIES[config.strategy]
    selected = strategy(ids, candidates, counts, random.fold(keys, 0), facts)
    row, position = np.divmod(np.flatnonzero(selected), ids.shape[1])  # several times faster than nonzero
    slot = np.arange(len(row)) - np.searchsorted(row, row)
    labels = ids[row, position]

    input_ids = ids.copy()
    draw = random.uniform(random.fold(random.fold(keys, 1)[row], position))
    piece = random.integers(random.fold(random.fold(keys, 2)[row], position), facts.vocab_size)
    seen = np.where(draw < config.mask_share, facts.mask, labels)
    seen = np.where(draw >= 1.0 - config.random_share, piece, seen)
    input_ids[row, position] = seen

    features = {
        "masked_positions": np.zeros((len(ids), room), np.int32),
        "masked_labels": np.zeros((len(ids), room), np.int32),
        "masked_weights": np.zeros((len(ids), room), np.float32),
    }
    for name, values in (("masked_positions", position), ("masked_labels", labels), ("masked_weights", 1)):
        features[name][row, slot] = values
    return {"input_ids": input_ids, **features}
