"""Sorts sequences into buckets of similar length, so that the rows of a batch have about one length."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from bert_jax.rows.features import Ints, Records


def by_bucket(
    blocks: Iterable[Records], lengths_of: Callable[[Records], Ints], lengths: Sequence[int]
) -> Iterator[tuple[str, Records]]:
    """Yield blocks of sequences with the part of the plan that they belong to.

    A sequence belongs to the shortest of the ascending row ``lengths`` that it fits.
    """
    for block in blocks:
        bucket = np.searchsorted(lengths, lengths_of(block))
        for i, length in enumerate(lengths):
            yield part_name(length), block[bucket == i]


def part_name(length: int) -> str:
    """Return the name of the part of a plan that holds the sequences of a bucket."""
    return f"sequences_{length}"
