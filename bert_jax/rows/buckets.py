"""Sorts sequences into buckets of similar length, so that the rows of a batch have about the same length."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from bert_jax.rows.features import Ints, Records


def by_bucket(
    blocks: Iterable[Records], lengths_of: Callable[[Records], Ints], lengths: Sequence[int]
) -> Iterator[tuple[str, Records]]:
    """Yield (name of a part of the plan, the sequences of a block that belong to this part).

    Each bucket is one part. A sequence belongs to the shortest of the ascending row ``lengths`` that it fits.
    """
    for block in blocks:
        bucket = np.searchsorted(lengths, lengths_of(block))
        for i, length in enumerate(lengths):
            yield part_name(length), block[bucket == i]


def part_name(length: int) -> str:
    """Return the name of the part of a plan that holds the sequences of the bucket with rows of ``length``."""
    return f"sequences_{length}"
