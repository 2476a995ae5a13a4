"""One sequence a row, rows of a batch of about one length: sequences apart by length."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from bert_jax.rows.features import Ints, Records


def by_bucket(
    blocks: Iterable[Records], lengths_of: Callable[[Records], Ints], lengths: Sequence[int]
) -> Iterator[tuple[str, Records]]:
    """Yield each sequence under the shortest of the ascending row ``lengths`` that it fits."""
    for block in blocks:
        bucket = np.searchsorted(lengths, lengths_of(block))
        for i, length in enumerate(lengths):
            yield part_name(length), block[bucket == i]


def part_name(length: int) -> str:
    """Return the name of the part of a plan that has the sequences of a bucket."""
    return f"sequences_{length}"
