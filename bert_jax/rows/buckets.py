"""One pair a row, rows of a batch of about one length: pairs apart by length."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from bert_jax.rows.packing import pair_lengths
from bert_jax.rows.plan import Pairs


def by_bucket(blocks: Iterable[Pairs], lengths: Sequence[int]) -> Iterator[tuple[str, Pairs]]:
    """Each pair to the shortest of the ascending row ``lengths`` that it fits."""
    for block in blocks:
        bucket = np.searchsorted(lengths, pair_lengths(block))
        for i, length in enumerate(lengths):
            yield part_name(length), block[bucket == i]


def part_name(length: int) -> str:
    """The part of a plan that has the pairs of a bucket."""
    return f"pairs_{length}"
