"""Splits made of one: a dev set dealt out of train, and a share of train that holds every smaller one."""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

from bert_jax.examples.columns import Example


def deal(examples: Sequence[Example], fraction: float, seed: int) -> tuple[tuple[Example, ...], tuple[Example, ...]]:
    """(train, dev): dev has ``fraction`` of the examples, rounded up, and of each label within one of that.

    Who is dealt is decided by a hash of seed and id. Both keep the order of ``examples``.
    """
    count = share(len(examples), fraction)
    dealt = set(_order(examples, f"dev {seed}", "middle")[:count])
    train = tuple(example for i, example in enumerate(examples) if i not in dealt)
    return train, tuple(example for i, example in enumerate(examples) if i in dealt)


def keep(examples: Sequence[Example], fraction: float, seed: int) -> tuple[Example, ...]:
    """``fraction`` of the examples, rounded up, of each label within one of that but of no label none where there is
    room. What a smaller fraction keeps a larger one keeps too."""
    if fraction == 1:
        return tuple(examples)
    kept = set(_order(examples, f"train {seed}", "first")[: share(len(examples), fraction)])
    return tuple(example for i, example in enumerate(examples) if i in kept)


def share(count: int, fraction: float) -> int:
    """``fraction`` of ``count``, rounded up."""
    return math.ceil(round(count * fraction, 6))


def _order(examples: Sequence[Example], salt: str, lead: Literal["first", "middle"]) -> list[int]:
    """Indices of ``examples`` so that every beginning of it has each label in its share.

    The r-th by hash of the n with a label stands at (r + 1/2) / n of the way; ``lead="first"`` takes the first of
    each label before all others.
    """
    groups: dict[str, list[tuple[bytes, int]]] = defaultdict(list)
    for i, example in enumerate(examples):
        digest = hashlib.blake2b(f"{salt} {example['id']}".encode("utf-8", "surrogatepass"), digest_size=16).digest()
        groups[str(example.get("label", ""))].append((digest, i))
    places = []
    for group in groups.values():
        for rank, (digest, i) in enumerate(sorted(group)):
            place = 0.0 if lead == "first" and rank == 0 else (rank + 0.5) / len(group)
            places.append((place, digest, i))
    return [i for _, _, i in sorted(places)]
