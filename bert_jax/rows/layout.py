"""Lays out two spans of text as one row: [CLS] A [SEP] B [SEP]."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bert_jax.rows.features import Ids, Rows, TokenFacts


def lay_out(
    tokens: Ids, a_lengths: npt.NDArray[np.int64], b_lengths: npt.NDArray[np.int64], max_length: int, facts: TokenFacts
) -> Rows:
    """Return pairs as rows of ``max_length`` positions.

    Args:
      tokens: the tokens of all pairs one after another, A before B, without gaps.
      a_lengths, b_lengths: [n] the number of tokens of A and of B. A pair must fit: a + b + 3 <= max_length.
    """
    position = np.arange(max_length, dtype=np.int32)  # [L]
    first_sep = (a_lengths + 1).astype(np.int32)[:, None]  # [n, 1]
    last_sep = first_sep + (b_lengths + 1).astype(np.int32)[:, None]
    real = position <= last_sep  # [n, L]
    second = (position > first_sep) & real
    is_text = real & (position != first_sep) & (position != last_sep)
    is_text[:, 0] = False

    input_ids = np.full(is_text.shape, facts.pad, np.int32)
    input_ids[is_text] = tokens  # row by row, A before B: the order of ``tokens``
    input_ids[:, 0] = facts.cls
    np.put_along_axis(input_ids, first_sep, facts.sep, axis=1)
    np.put_along_axis(input_ids, last_sep, facts.sep, axis=1)
    return Rows(input_ids, second.astype(np.int32), real.astype(np.int32), is_text, last_sep[:, 0].astype(np.int64) + 1)
