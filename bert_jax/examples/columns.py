"""Maps the columns of a record to the roles of a task, and finds records that cannot be examples."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from bert_jax.configuration import nearest
from bert_jax.errors import UserError
from bert_jax.examples.reading import BadRecord, DataRecord, other_delimiter
from bert_jax.examples.values import CONVERTED, SPANS, answer_of_tokens, is_blank, is_unicode
from bert_jax.records import Example
from bert_jax.text.surrogates import well_formed

Columns: TypeAlias = Mapping[str, str | int | Sequence[str | int]]
_ID = "id"
# What the model predicts: needed to train and to score, not to predict.
_TARGETS = ("label", "tags", "types", "answers", "target")
_FIRM = (*_TARGETS, "pair")  # roles that may be optional: if some examples have such a role, all must have it
MISSING = object()


@dataclasses.dataclass(frozen=True)
class Roles:
    """The roles that a task reads from an example. A role is a meaning of a value, such as "text" or "label".

    together: the first of these roles that an example has names its group; a group goes into one split as a whole.
    """

    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    together: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        return self.required + self.optional

    @property
    def inputs(self) -> tuple[str, ...]:
        """Return the roles that a model gets as input."""
        return tuple(role for role in self.all if role not in (*_TARGETS, "is_impossible", "group"))


def check_roles(columns: Columns, roles: Roles, where: str = "config.data.columns") -> None:
    """Raise a ``UserError`` with all keys of ``columns`` that are not roles and all values that cannot name columns."""
    known = (_ID, *roles.all)
    others = [role for role in columns if role not in known]
    wrong = [f"{where}.{role} is not a role of this task; {nearest(role, known)}" for role in others]
    wrong += [
        f"{where}.{role} is {names!r}; the name of a column or a tuple of names is needed"
        for role, names in columns.items()
        if not all(isinstance(name, str | int) for name in (names if isinstance(names, list | tuple) else [names]))
    ]
    if wrong:
        raise UserError("; ".join(wrong))


def choose(
    split: str, records: Sequence[DataRecord], columns: Columns, roles: Roles
) -> tuple[dict[str, Any], list[str]]:
    """Find the column, or columns, of each role in the records of a split.

    A role that is not in ``columns`` gets the column of the same name, unless ``columns`` gives this column to another
    role. ``_TARGETS`` may be missing in splits whose names begin with "test".

    Returns:
      role -> its column, or a tuple of columns; and a phrase for each role that lacks its column.
    """
    found: dict[str, str | tuple[str, ...]] = {}
    problems = []
    taken = {name.partition(".")[0] for names in columns.values() for name in _several(names)}
    for role in (_ID, *roles.all):
        if role not in columns and role in taken:
            if _is_needed(role, split, False, roles):
                problems.append(f"another role has the column {role!r}; set config.data.columns.{role}")
            continue
        wanted = columns.get(role, role)
        names = _several(wanted)
        absent = [name for name in names if not any(select(record, name) is not MISSING for record in records)]
        if not absent:
            found[role] = names[0] if len(names) == 1 else names
        elif _is_needed(role, split, role in columns, roles):
            others = {one for other in roles.all if other != role for one in _several(columns.get(other, other))}
            problems.append(_unknown(role, absent[0], records, others))
    return found, problems


def _several(names: str | int | Sequence[str | int]) -> tuple[str, ...]:
    """Return the name or names of columns as a tuple of text. (Columns without names are numbered.)

    A flag gives several names as the text ``('a', 'b')``.
    """
    if isinstance(names, str) and names.startswith(("(", "[")):
        with contextlib.suppress(ValueError, SyntaxError):
            typed = ast.literal_eval(names)
            names = typed if isinstance(typed, tuple | list) else names
    return (str(names),) if isinstance(names, str | int) else tuple(map(str, names))


def _is_needed(role: str, split: str, is_named: bool, roles: Roles) -> bool:
    if role in _TARGETS:
        return role in roles.all and not split.startswith("test")
    return is_named or role in roles.required


def _unknown(role: str, name: str, records: Sequence[DataRecord], others: Collection[str]) -> str:
    """Return a phrase for a role without its column ``name``; ``others``: the columns that other roles read."""
    first, absent = list(records[0]) if records else [], f"no column {name!r} for config.data.columns.{role}"
    if role == "tags" and first[:1] == ["words"] and (mark := other_delimiter(records[0]["words"][0])):
        only = f"each line has only a word; if '{mark}' separates it from its tag"
        return f"{absent}: {only}, add --config.data.options.delimiter='{mark}'"
    if len(first) == 1 and (mark := other_delimiter(first[0])):
        only = f"the only column is {first[0]!r}; if '{mark}' separates columns"
        return f"{absent}: {only}, add --config.data.options.delimiter='{mark}'"
    if len(records) == 1 and (lists := [key for key, value in records[0].items() if _has(value, name)]):
        return (
            f"{absent}: the objects of the list {lists[0]!r} have it;"
            f" --config.data.options.field={lists[0]} reads each of them as a record"
        )
    if _are_data(first, records):
        return (
            f"{absent}: the first line looks like data, not like names"
            f" ({well_formed(', '.join(' '.join(one.split())[:60] for one in first))}); add"
            f" --config.data.options.header=False --config.data.columns.{role}=NUMBER, from 0"
        )
    there = dict.fromkeys(" ".join(column.split())[:60] for record in records[:100] for column in _flat(record))
    hint = nearest(name, [one for one in there if one not in others]).partition("valid:")[0]
    listed = f"{hint}there are: {', '.join(sorted(there))}" if there else "there are none"
    return f"{absent}; {well_formed(listed)}"


def _has(value: Any, name: str) -> bool:
    """Return whether ``value`` is a list whose first object has the field ``name``."""
    return isinstance(value, list) and bool(value) and isinstance(value[0], Mapping) and name in value[0]


def _are_data(names: Sequence[str], records: Sequence[DataRecord]) -> bool:
    """Return whether a name has many words or is also a value of its column."""
    numbered = list(names) == [str(i) for i in range(len(names))]
    named = names[1:] if names[:1] == ["0"] else names  # a table's first column may have numbers and no name
    return not numbered and any(
        name.count(" ") > 3 or any(record.get(name) == name for record in records[:100]) for name in named
    )


def _flat(record: Mapping[str, Any], below: str = "") -> Iterable[str]:
    for key, value in record.items():
        yield f"{below}{key}"
        value = value[0] if isinstance(value, list) and value else value
        if isinstance(value, Mapping):
            yield from _flat(value, f"{below}{key}.")


def select(record: Any, column: str) -> Any:
    """Return ``record[column]``, or ``MISSING`` if there is no such column.

    A dot in ``column`` selects a field of a nested object, or of each item of a list.
    """
    if isinstance(record, Mapping) and column in record:
        return record[column]
    value, names = record, column.split(".")
    for i, name in enumerate(names):
        if isinstance(value, list):
            found = [select(item, ".".join(names[i:])) for item in value]
            return MISSING if MISSING in found else found
        if not isinstance(value, Mapping) or name not in value:
            return MISSING
        value = value[name]
    return value


def as_example(
    record: DataRecord, chosen: Mapping[str, Any], roles: Roles, is_test: bool, prefixes: Mapping[str, re.Pattern[str]]
) -> Example | BadRecord:
    """Return one record as an example, without roles that have no value; or a ``BadRecord`` with the reason.

    The example has the ``id`` that the file gives to the record, if any.

    ``prefixes``: role -> a regular expression, whose match is taken away from the start of a value or of its entries.
    """
    own = _value(record, chosen[_ID], _ID) if _ID in chosen else None
    example: Example = {} if own is None or own == "" else {_ID: str(own)}
    for role in roles.all:
        if role not in chosen:
            continue
        value = _value(record, chosen[role], role)
        if role in prefixes:
            value = _strip(prefixes[role], value)
        if is_blank(value, role):
            if role in roles.required or (role in _FIRM and not (is_test and role in _TARGETS)):
                return BadRecord(record.where, f"has an empty {role} (column {_shown(chosen[role])})")
            continue
        try:
            if role == "answers" and isinstance(value, str):
                value = answer_of_tokens(value, example.get("context", ""))
            example[role] = CONVERTED[role](value) if role in CONVERTED else value
        except ValueError as error:
            return BadRecord(record.where, f"has as {role} (column {_shown(chosen[role])}) {error}")
        if not is_unicode(example[role]):
            return BadRecord(record.where, f"has a {role} that is not UTF-8 (column {_shown(chosen[role])})")
    if "tags" in example and len(example["tags"]) != len(example["words"]):
        return BadRecord(record.where, f"has {len(example['words'])} words and {len(example['tags'])} tags")
    for role in [role for role in SPANS if role in example]:
        (start, end), length = example[role], len(example["text"])
        if not start < end <= length or not example["text"][start:end].strip():
            return BadRecord(record.where, f"has a {role} at {start} to {end}, and a text of {length} characters")
    if example.get("is_impossible") and "answers" in roles.all:
        example["answers"] = []
    return example


def _value(record: DataRecord, columns: str | tuple[str, ...], role: str) -> Any:
    """Return the value of a role in a record, or None if its column is missing.

    The values of several columns become a list if the role's value is a list; otherwise they are joined to one text.
    """
    if isinstance(columns, str):
        value = select(record, columns)
        return None if value is MISSING else value
    values = [select(record, column) for column in columns]
    values = [value for value in values if value is not MISSING and value is not None]
    if role in ("choices", "negatives", "words", "tags"):
        return values
    return ("-" if role == _ID else " ").join(str(value) for value in values)


def _strip(prefix: re.Pattern[str], value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_strip(prefix, item) for item in value]
    found = prefix.match(value) if isinstance(value, str) else None
    return value[found.end() :] if found else value


def _shown(columns: str | tuple[str, ...]) -> str:
    return repr(columns) if isinstance(columns, str) else ", ".join(map(repr, columns))
