"""Makes splits of one: a dev set dealt out of train, and shares of train, each of which contains every smaller one."""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

from bert_jax.examples.columns import Example


def deal(examples: Sequence[Example], fraction: float, seed: int) -> tuple[tuple[Example, ...], tuple[Example, ...]]:
    """Return (train, dev); dev has ``fraction`` of the examples, rounded up, and within one of that share of each
    label.

    A hash of seed and id decides which. Both keep the order of ``examples``.
    """
    count = share(len(examples), fraction)
    dealt = set(_order(examples, f"dev {seed}", "middle")[:count])
    train = tuple(example for i, example in enumerate(examples) if i not in dealt)
    return train, tuple(example for i, example in enumerate(examples) if i in dealt)


def keep(examples: Sequence[Example], fraction: float, seed: int) -> tuple[Example, ...]:
    """Return ``fraction`` of the examples, rounded up, and within one of that share of each label, but at least one of
    each if there is room. Every example that a smaller fraction keeps a larger one keeps too."""
    if fraction == 1:
        return tuple(examples)
    kept = set(_order(examples, f"train {seed}", "first")[: share(len(examples), fraction)])
    return tuple(example for i, example in enumerate(examples) if i in kept)


def share(count: int, fraction: float) -> int:
    """Return ``fraction`` of ``count``, rounded up."""
    return math.ceil(round(count * fraction, 6))


def _order(examples: Sequence[Example], salt: str, lead: Literal["first", "middle"]) -> list[int]:
    """Return the indices of ``examples`` in an order whose every beginning has each label in its share.

    The r-th by hash of the n examples of a label is placed at (r + 1/2) / n of the way; with ``lead="first"`` the first
    of each label come before all others.
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
