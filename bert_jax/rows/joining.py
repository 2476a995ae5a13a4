"""Joins sequences, each first laid out in a row of its own, into packed rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from bert_jax.rows.features import Field, Ints

WEIGHTS = "masked_weights"  # this feature is above 0 where a sequence has a target


class Flat(NamedTuple):
    """The features of m sequences, one sequence after another, without padding; T tokens and M targets in all."""

    lengths: Ints  # [m]
    positions: dict[str, np.ndarray]  # [T] features of the axis "position"
    target_of: Ints  # [M] the index of the sequence that each target belongs to, ascending
    targets: dict[str, np.ndarray]  # [M] features of the axis "target"
    sequences: dict[str, np.ndarray]  # [m] features of the axis "sequence"


def flatten(
    groups: Iterable[tuple[Ints, dict[str, np.ndarray]]],
    lengths: Ints,
    sequences: dict[str, np.ndarray],
    fields: Mapping[str, Field],
) -> Flat:
    """Return the sequences of several groups, merged into one order, without padding.

    Args:
      groups: for each group, the indices [g] of its sequences and their features [g, width]; every group has its own
        width.
      lengths: [m] the lengths of all sequences.
      sequences: the features [m] of the axis "sequence", of all sequences.
      fields: all features except ``attention_mask``.
    """
    tokens = int(lengths.sum())
    inside = {name: np.empty(tokens, field.dtype) for name, field in fields.items() if field.axis == "position"}
    target_arrays: dict[str, list[np.ndarray]] = {name: [] for name, field in fields.items() if field.axis == "target"}
    target_of: list[Ints] = []
    group_of = np.empty(len(lengths), np.int64)
    for number, (indices, features) in enumerate(groups):
        group_of[:] = -1
        group_of[indices] = number
        here, real = np.repeat(group_of == number, lengths), features["attention_mask"].astype(np.bool_)
        for name, values in inside.items():
            values[here] = features[name][real]
        chosen = np.flatnonzero(features[WEIGHTS])  # several times faster than nonzero
        target_of.append(indices[chosen // features[WEIGHTS].shape[1]])
        for name, arrays in target_arrays.items():
            arrays.append(features[name].reshape(-1)[chosen])
    owners = np.concatenate(target_of)
    order = np.argsort(owners, kind="stable")
    targets = {name: np.concatenate(arrays)[order] for name, arrays in target_arrays.items()}
    return Flat(lengths, inside, owners[order], targets, sequences)


def join(
    flat: Flat, sizes: Ints, shape: tuple[int, int, int], fields: Mapping[str, Field], pad: int
) -> dict[str, np.ndarray]:
    """Return rows that hold several sequences each, one after another.

    Args:
      flat: all sequences, in the order of the rows.
      sizes: [n] the number of sequences of each row, at least one; they add up to the number of all sequences.
      shape: (L, P, K). The sequences of a row must fit into L positions; targets of a row after the P-th are left out.
      pad: the token id of padding; all other features are 0 on padding.

    Returns:
      The features of ``fields``, shaped [n, L], [n, P] or [n, K] by their axis, with positions counted from the start
      of the row; and ``attention_mask``, ``position_ids`` (from 0 in every sequence), ``sequence_ids`` (sequences from
      1), each [n, L].
    """
    max_length, predictions, max_sequences = shape
    count, lengths = len(sizes), flat.lengths
    row = np.repeat(np.arange(count), sizes)  # [m]
    place = np.arange(len(row)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # [m] index of a sequence in its row
    begin = np.cumsum(lengths) - lengths  # [m] where a sequence begins in the flat order
    totals = np.bincount(row, lengths, count).astype(np.int64)  # [n] number of tokens of a row
    offset = begin - (np.cumsum(totals) - totals)[row]  # [m] where a sequence begins in its row
    real = np.arange(max_length) < totals[:, None]

    def spread(values: np.ndarray, dtype: str = "int32", empty: int = 0) -> np.ndarray:
        rows = np.full((count, max_length), empty, dtype)
        rows[real] = values
        return rows

    features = {
        "attention_mask": real.astype(np.int32),
        "position_ids": spread(np.arange(int(lengths.sum())) - np.repeat(begin, lengths)),
        "sequence_ids": spread(np.repeat(place + 1, lengths)),
    }
    targets, target_row, shift = flat.targets, row[flat.target_of], offset[flat.target_of]
    slot = np.arange(len(target_row)) - np.searchsorted(target_row, np.arange(count))[target_row]
    if not (held := slot < predictions).all():  # only if counts are random, and then in about one row of 10,000
        target_row, shift, slot = target_row[held], shift[held], slot[held]
        targets = {name: values[held] for name, values in targets.items()}
    for name, field in fields.items():
        if field.axis == "position":
            shifts = np.repeat(offset, lengths) if field.is_place else 0
            features[name] = spread(flat.positions[name] + shifts, field.dtype, pad if name == "input_ids" else 0)
        elif field.axis == "target":
            features[name] = np.zeros((count, predictions), field.dtype)
            features[name][target_row, slot] = targets[name] + (shift if field.is_place else 0)
        else:
            features[name] = np.zeros((count, max_sequences), field.dtype)
            features[name][row, place] = flat.sequences[name] + (offset if field.is_place else 0)
    return features
