"""Packed rows hold the features of their sequences as each feature's axis says."""

from __future__ import annotations

import numpy as np

from bert_jax.rows.features import Field
from bert_jax.rows.joining import Flat, join


def test_places_are_counted_from_the_start_of_the_row() -> None:
    fields = {
        "input_ids": Field("position"),
        "partner": Field("position", is_place=True),
        "head": Field("sequence", is_place=True),
        "answer": Field("target", is_place=True),
    }
    flat = Flat(
        np.array([2, 3]),
        {"input_ids": np.array([7, 8, 4, 5, 6]), "partner": np.array([1, 0, 2, 1, 0])},
        np.array([0, 1]),
        {"answer": np.array([1, 2])},
        {"head": np.array([0, 1])},
    )
    rows = join(flat, np.array([2]), (6, 2, 2), fields, pad=9)
    assert rows["input_ids"].tolist() == [[7, 8, 4, 5, 6, 9]]
    assert rows["partner"].tolist() == [[1, 0, 4, 3, 2, 0]]
    assert rows["head"].tolist() == [[0, 3]]
    assert rows["answer"].tolist() == [[1, 4]]
