"""Takes a dev split out of train, and makes nested shares of train: each contains every smaller share."""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

from bert_jax.examples.columns import Example


def deal(examples: Sequence[Example], fraction: float, seed: int) -> tuple[tuple[Example, ...], tuple[Example, ...]]:
    """Divide ``examples`` into (train, dev); dev has ``fraction`` of them, rounded up.

    Of the examples of each label, dev has the same fraction, give or take one example. A hash of seed and id decides
    which examples are taken. Both splits keep the order of ``examples``.
    """
    count = share(len(examples), fraction)
    dealt = set(_order(examples, f"dev {seed}", "middle")[:count])
    train = tuple(example for i, example in enumerate(examples) if i not in dealt)
    return train, tuple(example for i, example in enumerate(examples) if i in dealt)


def keep(examples: Sequence[Example], fraction: float, seed: int) -> tuple[Example, ...]:
    """Return ``fraction`` of the examples, rounded up, in their order.

    Of the examples of each label, the same fraction is kept, give or take one example, but at least one if there is
    room. A larger fraction keeps every example that a smaller fraction keeps.
    """
    if fraction == 1:
        return tuple(examples)
    kept = set(_order(examples, f"train {seed}", "first")[: share(len(examples), fraction)])
    return tuple(example for i, example in enumerate(examples) if i in kept)


def at_most(examples: Sequence[Example], most: int, seed: int) -> tuple[Example, ...]:
    """Return at most ``most`` of the examples, which keep the proportions of the labels."""
    return keep(examples, min(1.0, most / len(examples)), seed)[:most] if examples else ()


def share(count: int, fraction: float) -> int:
    """Return ``fraction`` of ``count``, rounded up."""
    return math.ceil(round(count * fraction, 6))


def _order(examples: Sequence[Example], salt: str, lead: Literal["first", "middle"]) -> list[int]:
    """Return the indices of ``examples`` in an order such that every prefix has nearly the proportions of all labels.

    The n examples of a label are sorted by a hash; the example with rank r (from 0) is placed at (r + 1/2) / n of the
    order. If ``lead="first"``, the example with rank 0 of each label comes before all others.
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
