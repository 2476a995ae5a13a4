"""Pairs laid out each by itself -> the packed rows that hold them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bert_jax.rows.masking import Ids

Ints = npt.NDArray[np.int64]


class FlatPairs(NamedTuple):
    """Masked pairs one after another, without padding: T tokens and M masked positions of m pairs."""

    lengths: Ints  # [m]
    input_ids: Ids  # [T]
    token_type_ids: Ids  # [T]
    masked_pair: Ints  # [M] ascending
    masked_position: Ints  # [M] in the pair, ascending
    masked_labels: Ids  # [M]


def flatten(groups: Iterable[tuple[Ints, dict[str, np.ndarray]]], lengths: Ints) -> FlatPairs:
    """Bring groups of padded pairs into one order.

    Args:
      groups: indices [g] of pairs, and their features [g, width], each group of its own width.
      lengths: [m] of all pairs.
    """
    tokens = int(lengths.sum())
    ids, types = np.empty(tokens, np.int32), np.empty(tokens, np.int32)
    group_of = np.empty(len(lengths), np.int64)
    masked: list[tuple[Ints, Ints, Ids]] = []
    for number, (indices, features) in enumerate(groups):
        group_of[:] = -1
        group_of[indices] = number
        here, real = np.repeat(group_of == number, lengths), features["attention_mask"].astype(np.bool_)
        ids[here] = features["input_ids"][real]
        types[here] = features["token_type_ids"][real]
        pair, slot = np.nonzero(features["masked_weights"])
        masked.append((indices[pair], features["masked_positions"][pair, slot], features["masked_labels"][pair, slot]))
    pairs, positions, labels = (np.concatenate(column) for column in zip(*masked, strict=True))
    order = np.argsort(pairs, kind="stable")
    return FlatPairs(lengths, ids, types, pairs[order], positions[order], labels[order])


def join(flat: FlatPairs, sizes: Ints, shape: tuple[int, int, int], pad: int) -> dict[str, np.ndarray]:
    """Rows of several pairs, one after another.

    Args:
      sizes: [n] pairs of each row, at least one; their sum is the number of pairs.
      shape: (L, P, K). The pairs of a row must fit.

    Returns:
      ``input_ids``, ``token_type_ids``, ``attention_mask``, ``position_ids`` (from 0 in every pair), ``sequence_ids``
      (pairs from 1) [n, L]; ``masked_positions``, ``masked_labels``, ``masked_weights`` [n, P]; ``cls_positions``,
      ``next_sentence_weights`` [n, K], 0 where there is no pair.
    """
    max_length, predictions, max_pairs = shape
    count, lengths = len(sizes), flat.lengths
    row = np.repeat(np.arange(count), sizes)  # [m]
    place = np.arange(len(row)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # [m] of a pair in its row
    begin = np.cumsum(lengths) - lengths  # [m] in the flat order
    totals = np.bincount(row, lengths, count).astype(np.int64)  # [n] tokens of a row
    offset = begin - (np.cumsum(totals) - totals)[row]  # [m] of a pair in its row
    real = np.arange(max_length) < totals[:, None]

    def spread(values: np.ndarray, empty: int = 0) -> Ids:
        rows = np.full((count, max_length), empty, np.int32)
        rows[real] = values
        return rows

    masked_row = row[flat.masked_pair]
    slot = np.arange(len(masked_row)) - np.searchsorted(masked_row, masked_row)
    features = {
        "input_ids": spread(flat.input_ids, pad),
        "token_type_ids": spread(flat.token_type_ids),
        "attention_mask": real.astype(np.int32),
        "position_ids": spread(np.arange(len(flat.input_ids)) - np.repeat(begin, lengths)),
        "sequence_ids": spread(np.repeat(place + 1, lengths)),
        "masked_positions": np.zeros((count, predictions), np.int32),
        "masked_labels": np.zeros((count, predictions), np.int32),
        "masked_weights": np.zeros((count, predictions), np.float32),
        "cls_positions": np.zeros((count, max_pairs), np.int32),
        "next_sentence_weights": np.zeros((count, max_pairs), np.float32),
    }
    features["masked_positions"][masked_row, slot] = offset[flat.masked_pair] + flat.masked_position
    features["masked_labels"][masked_row, slot] = flat.masked_labels
    features["masked_weights"][masked_row, slot] = 1
    features["cls_positions"][row, place] = offset
    features["next_sentence_weights"][row, place] = 1
    return features
