"""Finds the names of the labels in the examples, in the order of the logits."""

from __future__ import annotations

from collections.abc import Sequence

from bert_jax.errors import UserError, few
from bert_jax.records import Example

_MOST = 1000
_SHOWN = 20
_ABSENT = ("-", "--", "?", "n/a", "nan", "null", "none")  # what stands in files where a label is missing
_FEW = 10  # up to this number of examples may all have different labels


def label_names(examples: Sequence[Example], role: str) -> tuple[str, ...]:
    """Return the different values of ``role`` (for lists, the items) as text, sorted; whole numbers by size.

    Raises:
      UserError: there is no value, there are more than 1,000 different values, or no two examples share a value.
    """
    values = [example[role] for example in examples if role in example]
    lists = any(isinstance(value, list) for value in values)
    names = {str(item) for value in values for item in (value if isinstance(value, list) else [value])}
    hint = f"is config.data.columns.{role} the right column, or is this a regression?"
    if not names:
        raise UserError(f"no example has a {role}; set config.data.columns.{role}")
    if len(names) > _MOST:
        raise UserError(f"{len(names):,} different values of {role} found, at most {_MOST:,} are allowed; {hint}")
    if not lists and _FEW < len(values) == len(names):
        raise UserError(f"each of {len(values)} examples has a {role} of its own, such as {min(names)!r}; {hint}")
    try:
        return tuple(sorted(names, key=int))
    except ValueError:
        return tuple(sorted(names))


def label_note(names: Sequence[str]) -> str:
    """Return a line with the first labels and the number of the others, and what to do if they look wrong."""
    hint = "; they are numbers with fractions: --config=regression learns scores" if _are_scores(names) else ""
    absent = [
        name for name in names if name.lower() in _ABSENT or (name == "-1" and "2" in names and "-2" not in names)
    ]
    if absent:
        hint += (
            f'; {absent[0]!r} looks like a missing label: --config.data.drop_labels="({absent[0]!r},)" leaves it out'
        )
    return f"labels: {few(names, _SHOWN)}{hint}"


def _are_scores(names: Sequence[str]) -> bool:
    try:
        numbers = [float(name) for name in names]
    except ValueError:
        return False
    return len(numbers) > 2 and not all(map(float.is_integer, numbers))
