"""Assigns rows to splits by a column, by ids or at random, takes a share of a split, and finds inputs in two splits.

A larger share contains every smaller share. A score on inputs that the model was trained on means nothing.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from bert_jax.configuration import nearest
from bert_jax.errors import UserError, few
from bert_jax.examples.columns import MISSING, select
from bert_jax.examples.reading import BadRecord, DataRecord
from bert_jax.program import Note
from bert_jax.records import Example

KNOWN = {
    "train": ("train", "training"),
    "dev": ("dev", "valid", "validation", "val", "trial"),
    "test": ("test", "testing"),
}  # split -> the values that mean it, in lower case
_SHOWN = 10


def deal(
    examples: Sequence[Example], fraction: float, seed: int, together: Sequence[str] = ()
) -> tuple[tuple[Example, ...], tuple[Example, ...]]:
    """Divide ``examples`` into (train, dev); dev has ``fraction`` of them, rounded up.

    Of the examples of each label, and of all rare labels together, dev has the same fraction, give or take one example.
    A hash of seed and id decides which examples are taken. Both splits keep the order of ``examples``. Whole groups of
    ``together`` are dealt (``groups_of``).
    """
    dealt = _taken(examples, fraction, f"dev {seed}", "frequent", together)
    train = tuple(example for i, example in enumerate(examples) if i not in dealt)
    return train, tuple(example for i, example in enumerate(examples) if i in dealt)


def deal_by_ids(
    examples: Sequence[Example], ids: Collection[str], where: str
) -> tuple[tuple[Example, ...], tuple[Example, ...]]:
    """Divide ``examples`` into (train, dev); dev has the examples with an id of ``ids``, which the file ``where`` has.

    Raises ``UserError`` if an id is of no example.
    """
    dev = tuple(example for example in examples if example["id"] in ids)
    if len(dev) < len(set(ids)):
        missing = sorted(set(ids) - {example["id"] for example in dev})
        raise UserError(
            f"{len(missing):,} of {len(set(ids)):,} ids of {where} are of no row, such as {missing[0]!r} (a row is "
            f"{examples[0]['id'] if examples else 'absent'!r}); set config.data.columns.id, or config.data.dev_ids"
        )
    return tuple(example for example in examples if example["id"] not in ids), dev


def keep_fraction(
    examples: Sequence[Example], fraction: float, seed: int, together: Sequence[str] = ()
) -> tuple[Example, ...]:
    """Return ``fraction`` of the examples, rounded up, in their order; of whole groups if ``together`` makes any.

    Of the examples of each label, and of all rare labels together, the same fraction is kept, give or take one example.
    The first kept example has a rare label. A larger fraction keeps every example that a smaller fraction keeps.
    """
    if fraction == 1:
        return tuple(examples)
    kept = _taken(examples, fraction, f"train {seed}", "rare", together)
    return tuple(example for i, example in enumerate(examples) if i in kept)


def at_most(examples: Sequence[Example], most: int, seed: int, together: Sequence[str] = ()) -> tuple[Example, ...]:
    """Return at most ``most`` of the examples, which keep the proportions of the labels; the last group stays whole."""
    kept = keep_fraction(examples, min(1.0, most / len(examples)), seed, together) if examples else ()
    return kept if together else kept[:most]


def share(count: int, fraction: float) -> int:
    """Return ``fraction`` of ``count``, rounded up."""
    return math.ceil(round(count * fraction, 6))


def groups_of(examples: Sequence[Example], together: Sequence[str]) -> list[list[int]]:
    """Return the indices of the examples of each group, groups in the order in which they begin.

    Args:
      together: roles; the first of these roles that an example has names its group. If (), each example is a group.
    """
    groups: dict[Any, list[int]] = {}
    for i, example in enumerate(examples):
        role = next((role for role in together if example.get(role) is not None), None)
        groups.setdefault(i if role is None else (role, str(example[role])), []).append(i)
    return list(groups.values())


def _taken(
    examples: Sequence[Example], fraction: float, salt: str, lead: Literal["rare", "frequent"], together: Sequence[str]
) -> set[int]:
    """Return the indices of ``fraction`` of the examples, rounded up to whole groups."""
    count, groups, taken = share(len(examples), fraction), groups_of(examples, together), set[int]()
    for number in _order([examples[group[0]] for group in groups], salt, lead):
        if len(taken) >= count:
            break
        taken.update(groups[number])
    return taken


def _order(examples: Sequence[Example], salt: str, lead: Literal["rare", "frequent"]) -> list[int]:
    """Return the indices of ``examples`` in an order such that every prefix has nearly the proportions of all labels.

    A prefix of k of n examples has k c / n examples, rounded down or up, of a label with c examples, and nearly the
    share of all rare labels together. Labels with the same number of examples take turns, in the order of a hash. The
    orders of these strata stand by that number, and the two smallest neighbors are merged until a single order is left.
    The last merge has all rare labels on one side, and begins with the side ``lead``.
    """
    labels: dict[str, list[tuple[bytes, int]]] = defaultdict(list)
    for i, example in enumerate(examples):
        digest = hashlib.blake2b(f"{salt} {example['id']}".encode("utf-8", "surrogatepass"), digest_size=16).digest()
        labels[str(example.get("label", ""))].append((digest, i))
    alike: dict[int, list[tuple[int, bytes, int]]] = defaultdict(list)  # number of examples of a label -> all of them
    for group in labels.values():
        alike[len(group)].extend((rank, digest, i) for rank, (digest, i) in enumerate(sorted(group)))
    orders = [[i for _, _, i in sorted(alike[size])] for size in sorted(alike)]
    while len(orders) > 1:
        at = min(range(len(orders) - 1), key=lambda at: len(orders[at]) + len(orders[at + 1]))
        rare_first = lead == "rare" and len(orders) == 2
        orders[at : at + 2] = [_merged(orders[at], orders[at + 1], rare_first)]
    return orders[0] if orders else []


def _merged(rare: Sequence[int], frequent: Sequence[int], rare_first: bool) -> list[int]:
    """Return both orders in one; each prefix has nearly the proportions of both."""
    places = [((rank + 0.5) / len(rare), 1, i) for rank, i in enumerate(rare)]
    if rare_first:
        places[0] = (0.0, 1, rare[0])
    places += [((rank + 0.5) / len(frequent), 0, i) for rank, i in enumerate(frequent)]
    return [i for _, _, i in sorted(places, key=lambda place: place[:2])]


def check_column(column: str, values: Mapping[str, Any], splits: Mapping[str, str]) -> None:
    """Raise ``UserError`` if the keys of ``config.data`` on splits by a column do not fit together."""
    if column and len(splits) != 1:
        raise UserError(
            f"config.data.split_column is {column!r}, and config.data.splits names {', '.join(splits)}; one file is "
            "needed, which has the rows of all splits"
        )
    if values and not column:
        raise UserError("config.data.split_values is given without config.data.split_column; name the column")
    if wrong := [name for name in values if not name.startswith(tuple(KNOWN))]:
        raise UserError(f"config.data.split_values has {wrong[0]!r}; names begin with train, dev or test")


def deal_by_column(
    items: Sequence[DataRecord | BadRecord], column: str, values: Mapping[str, Any], note: Note
) -> dict[str, list[DataRecord | BadRecord]]:
    """Return the items by split, in their order; bad items, which have no columns, are in the first split.

    Args:
      values: split -> its value or values in ``column``; rows with other values are left out. If empty, the usual
        names of splits are known, and other values are errors.

    Raises ``UserError`` if there is no such column, or a value has no split.
    """
    names = {split: _texts(of) for split, of in values.items()} or KNOWN
    split_of = {value: split for split, of in names.items() for value in of}
    found: dict[str, list[DataRecord | BadRecord]] = {split: [] for split in names}
    left_out: dict[str, int] = {}
    for item in items:
        if isinstance(item, BadRecord):
            found[next(iter(found))].append(item)
            continue
        value = select(item, column)
        if value is MISSING:
            known = nearest(column, map(str, item))
            raise UserError(f"{item.where} has no column {column!r} (config.data.split_column); {known}")
        text = str(value).strip()
        split = split_of.get(text if values else text.lower())
        if split is None:
            left_out[text] = left_out.get(text, 0) + 1
        else:
            found[split].append(item)
    if left_out:
        others = few(list(map(repr, sorted(left_out))), _SHOWN)
        if not values:
            raise UserError(
                f"the column {column!r} has the values {others}, which name no split; say which is which, such as "
                "--config.data.split_values=\"{'train': ('0', '1'), 'dev': '2'}\""
            )
        note(f"{sum(left_out.values()):,} rows are in no split: {column!r} is {others}")
    return {split: of for split, of in found.items() if of}


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list | tuple) else (str(value),)


def train_split(names: Collection[str], where: str = "config.data") -> str:
    """Return the name of the split to train on.

    Raises ``UserError`` unless there are exactly one such split and at least one to evaluate on.
    """
    train = [name for name in names if name.startswith("train")]
    if len(train) != 1 or not any(name.startswith("dev") for name in names):
        raise UserError(
            f"{where} has the splits {', '.join(names) or 'none'}; needed are one train split, and one dev split or "
            f"{where}.dev_fraction"
        )
    return train[0]


# ---- Inputs in two splits -------------------------------------------------------------------------------------------


def overlaps(splits: Mapping[str, Sequence[Example]], inputs: Sequence[str]) -> list[str]:
    """Return a line for each pair of splits, train first, that share inputs; case and white space are ignored."""
    keys = {name: [key(example, inputs) for example in examples] for name, examples in splits.items()}
    lines = []
    for first, second in itertools.combinations(sorted(splits, key=_rank), 2):
        ids: dict[bytes, str] = {}
        for k, example in zip(keys[first], splits[first], strict=True):
            ids.setdefault(k, example["id"])
        both = [
            f"{example['id']} is {ids[k]}" for k, example in zip(keys[second], splits[second], strict=True) if k in ids
        ]
        if both:
            total = len(splits[second])
            lines.append(f"{len(both):,} of {total:,} examples of {second} are in {first} too ({few(both, 3)})")
    return lines


def drop_shared(
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
