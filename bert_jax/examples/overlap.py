"""Finds inputs that are in two splits. A score on inputs that the model was trained on means nothing."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bert_jax.examples.columns import Example

SHOWN = 3


class Overlap(NamedTuple):
    """The overlap of two splits: examples of ``second`` with the same inputs as an example of ``first``.

    Case and white space are ignored.
    """

    first: str  # name of a split
    second: str  # name of a split
    shared: int  # number of examples of ``second`` that are in ``first`` too
    total: int  # number of examples of ``second``
    pairs: tuple[tuple[str, str], ...]  # (id in second, id in first) of the first few shared examples

    def __str__(self) -> str:
        shown = ", ".join(f"{there} is {here}" for there, here in self.pairs)
        more = ", ..." if self.shared > len(self.pairs) else ""
        return f"{self.shared:,} of {self.total:,} examples of {self.second} are in {self.first} too ({shown}{more})"


def find(splits: Mapping[str, Sequence[Example]], inputs: Sequence[str]) -> list[Overlap]:
    """Return the overlap of each pair of splits, train first; pairs without shared examples are left out."""
    keys = {name: [key(example, inputs) for example in examples] for name, examples in splits.items()}
    found = []
    for first, second in itertools.combinations(sorted(splits, key=_rank), 2):
        ids: dict[bytes, str] = {}
        for k, example in zip(keys[first], splits[first], strict=True):
            ids.setdefault(k, example["id"])
        both = [(example["id"], ids[k]) for k, example in zip(keys[second], splits[second], strict=True) if k in ids]
        if both:
            found.append(Overlap(first, second, len(both), len(splits[second]), tuple(both[:SHOWN])))
    return found


def without(
    splits: Mapping[str, Sequence[Example]], inputs: Sequence[str]
) -> tuple[dict[str, tuple[Example, ...]], int]:
    """Return the splits without the train examples that are also in a dev or test split, and the number removed."""
    others = {key(e, inputs) for name, split in splits.items() if _rank(name)[0] > 0 for e in split}
    result = {
        name: tuple(e for e in split if _rank(name)[0] > 0 or key(e, inputs) not in others)
        for name, split in splits.items()
    }
    return result, sum(map(len, splits.values())) - sum(map(len, result.values()))


def key(example: Example, inputs: Sequence[str]) -> bytes:
    """Return a hash of the model's inputs in ``example``; case and white space do not matter.

    Args:
      inputs: the roles that are inputs.
    """
    seen = [_plain(example.get(role)) for role in inputs]
    return hashlib.blake2b(json.dumps(seen).encode(), digest_size=16).digest()


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return " ".join(value.casefold().split())
    return [" ".join(item.casefold().split()) for item in value] if isinstance(value, list) else value


def _rank(split: str) -> tuple[int, str]:
    return next((i for i, kind in enumerate(("train", "dev", "test")) if split.startswith(kind)), 3), split
