"""Deals the rows of one file to splits by the values of a column, as in SICK (``SemEval_set``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.configuration import nearest
from bert_jax.errors import UserError
from bert_jax.examples.columns import MISSING, Note, select
from bert_jax.examples.reading import Bad, Record

KNOWN = {
    "train": ("train", "training"),
    "dev": ("dev", "valid", "validation", "val", "trial"),
    "test": ("test", "testing"),
}  # split -> the values that mean it, in lower case
SHOWN = 10


def check(column: str, values: Mapping[str, Any], splits: Mapping[str, str]) -> None:
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


def dealt(
    items: Sequence[Record | Bad], column: str, values: Mapping[str, Any], note: Note
) -> dict[str, list[Record | Bad]]:
    """Return the items by split, in their order; bad ones, which have no columns, are in the first split.

    Args:
      values: split -> its value or values in ``column``; rows with other values are left out. If empty, the usual
        names of splits are known, and other values are errors.

    Raises ``UserError`` if there is no such column, or a value has no split.
    """
    names = {split: _texts(of) for split, of in values.items()} or KNOWN
    split_of = {value: split for split, of in names.items() for value in of}
    found: dict[str, list[Record | Bad]] = {split: [] for split in names}
    left_out: dict[str, int] = {}
    for item in items:
        if isinstance(item, Bad):
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
        listed = ", ".join(map(repr, sorted(left_out)[:SHOWN])) + (", ..." if len(left_out) > SHOWN else "")
        if not values:
            raise UserError(
                f"the column {column!r} has the values {listed}, which name no split; say which is which, such as "
                "--config.data.split_values=\"{'train': ('0', '1'), 'dev': '2'}\""
            )
        note(f"{sum(left_out.values()):,} rows are in no split: {column!r} is {listed}")
    return {split: of for split, of in found.items() if of}


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list | tuple) else (str(value),)
