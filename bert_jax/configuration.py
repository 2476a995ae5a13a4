"""Turns a plain config tree into frozen dataclasses; raises errors that name unknown keys and values of wrong types."""

from __future__ import annotations

import dataclasses
import difflib
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, TypeVar

from bert_jax.errors import UserError

T = TypeVar("T")
# The type of a field that is a weight of a loss: ``build`` checks it with ``check_weights``.
LossWeight = Annotated[float, "weight of a loss"]


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return a phrase that names the valid choice closest to ``name``, followed by all valid choices."""
    valid = sorted(valid)
    folded = {one.casefold(): one for one in valid}
    close = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.5)
    hint = f"did you mean {folded[close[0]]!r}? " if close else ""
    return f"{hint}valid: {', '.join(valid)}"


def choose(kind: str, name: str, table: Mapping[str, T]) -> T:
    """Return ``table[name]``. Raises ``UserError`` that lists the valid names if ``name`` is not in the table."""
    if not isinstance(name, str) or name not in table:
        raise UserError(f"unknown {kind} {name!r}; {nearest(str(name), table)}")
    return table[name]


_WHOLE_BITS = 63  # integers in a config must fit into this many bits, because numpy and jax take no larger ones
_INFINITE = 2.0**128 - 2.0**103  # numbers from here on are infinite in float32, to which devices round them
_LEAST_SHARE = 1e-6  # of the batches; a smaller share is a slip
ONE = 1 - 2.0**-25  # numbers from here to 1 are 1 in float32
# Keys of a group that say the same thing in other words: a recipe gives one key of a tuple, which replaces the others.
IN_PLACE_OF = (
    ("num_steps", "num_tokens", "num_epochs"),
    ("warmup_steps", "warmup_fraction", "warmup_tokens"),
    ("decay_steps", "decay_fraction", "decay_tokens"),
    ("eval_every_steps", "evaluations_per_epoch"),
    ("log_every_steps", "logs_per_evaluation"),
)


def complete(given: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tree ``given`` with the keys of ``base`` that it lacks and does not replace (``IN_PLACE_OF``)."""
    replaced = {other for keys in IN_PLACE_OF if any(given.get(key) is not None for key in keys) for other in keys}
    both = {key for key in given.keys() & base.keys() if _are_groups(given[key], base[key])}
    kept = {key: value for key, value in base.items() if key not in replaced}
    return {**kept, **given, **{key: complete(given[key], base[key]) for key in both}}


def _are_groups(*values: Any) -> bool:
    return all(isinstance(value, Mapping) for value in values)


def build(cls: type[T], mapping: Mapping[str, Any], where: str, also: Iterable[str] = (), base: T | None = None) -> T:
    """Return the frozen dataclass ``cls`` made from a config sub-tree called ``where``.

    Nested mappings become nested dataclasses, and lists become tuples. Integers are accepted for floats; no other type
    is converted. A class that stands at several paths has ``where: InitVar[str]``, for its own messages.

    Args:
      also: keys of the sub-tree that are valid because other code reads them.
      base: has the values of the keys that ``mapping`` lacks. If None, the defaults of ``cls`` are taken. The default
        of a nested group is such a base for the keys of the group.

    Raises:
      UserError: names every unknown key with the nearest valid one, every missing required key, every value of a wrong
        type, and keys that replace each other.
    """
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init}  # type: ignore[arg-type]
    hints = typing.get_type_hints(cls)
    valid = [*fields, *also]
    problems = [f"unknown key {where}.{key}; {nearest(str(key), valid)}" for key in mapping if key not in valid]
    for keys in IN_PLACE_OF:
        given = [key for key in keys if mapping.get(key) is not None]
        if len(given) > 1 and all(key in fields and _default(fields[key]) is not dataclasses.MISSING for key in keys):
            problems.append(f"{where} has {' and '.join(given)}, of which one is allowed; leave the other out")
    if base is not None:
        mapping = complete(mapping, vars(base))
    values = {}
    for name, field in fields.items():
        default = _default(field) if base is None else getattr(base, name)
        if name in mapping:
            try:
                values[name] = _convert(mapping[name], hints[name], f"{where}.{name}", default)
            except UserError as error:
                problems.append(str(error))
        elif default is dataclasses.MISSING:
            problems.append(f"missing key {where}.{name}")
    if problems:
        raise UserError("; ".join(problems))
    extra = {"where": where} if isinstance(hints.get("where"), dataclasses.InitVar) else {}
    new = cls(**values, **extra)
    typed = typing.get_type_hints(cls, include_extras=True)
    check_weights(new, where, *(name for name in values if typed[name] == LossWeight))
    floats = [name for name, value in values.items() if isinstance(value, float)]
    check_fields(new, where, "below 3.4e38 is needed, for float32", *floats, sound=lambda value: abs(value) < _INFINITE)
    return new


def replace(config: T, changes: Mapping[str, Any], where: str, also: Iterable[str] = ()) -> T:
    """Return ``config`` with the fields in the sub-tree ``changes``, called ``where``; see ``build``."""
    kept = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}  # type: ignore[arg-type]
    return build(type(config), {**kept, **changes}, where, also=also)


def _default(field: dataclasses.Field[Any]) -> Any:
    """Return the default of a field; ``MISSING`` if it is required."""
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _convert(value: Any, hint: Any, where: str, default: Any = None) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value in (None, "None") and type(None) in arguments:  # "None": typed in place of a text
            return None
        hints = [a for a in arguments if a is not type(None)]
        if len(hints) == 1:
            return _convert(value, hints[0], where, default)
        if type(value) in hints:
            return value
        raise UserError(f"{where} is {value!r}; expected {' or '.join(hint.__name__ for hint in hints)}")
    if origin is typing.Literal:
        if value not in arguments:
            raise UserError(f"{where} is {value!r}; allowed: {', '.join(map(repr, arguments))}")
        return value
    if isinstance(hint, type) and dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
        plain = not isinstance(default, hint) or default == hint()  # then the class says what is not given
        return build(hint, value, where, base=None if plain else default)
    if origin is tuple and isinstance(value, str) and str in (arguments[0], *typing.get_args(arguments[0])):
        return (value,)
    if origin is tuple and type(value) is int and int in typing.get_args(arguments[0]):
        return (value,)
    if origin is tuple and isinstance(value, (list, tuple)):
        return tuple(_convert(v, arguments[0], f"{where}[{i}]") for i, v in enumerate(value))
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        if not abs(value) <= sys.float_info.max:  # math.isfinite() fails for an integer that fits into no float
            found = f"{len(str(abs(value)))} digits long" if isinstance(value, int) else value
            raise UserError(f"{where} is {found}; a finite number is needed")
        return float(value)
    if origin in (dict, Mapping) and isinstance(value, Mapping):
        return complete(value, default) if isinstance(default, Mapping) and default else value
    if hint is Any:
        return value
    if isinstance(hint, type) and isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        if hint is int and isinstance(value, int) and abs(value) >= 2**_WHOLE_BITS:
            raise UserError(
                f"{where} has {len(str(abs(value)))} digits; a whole number below 2^{_WHOLE_BITS} is needed"
            )
        return value
    if dataclasses.is_dataclass(hint):
        first = dataclasses.fields(hint)[0].name
        raise UserError(f"{where} is {value!r}, and has keys of its own; give one of them, --{where}.{first}={value}")
    expected = _tuple_of(arguments[0], value) if origin is tuple else getattr(hint, "__name__", hint)
    raise UserError(f"{where} is {value!r}; expected {expected}")


def _tuple_of(kind: Any, value: Any) -> str:
    """Return "a tuple, such as ...". If ``value`` is a ``kind``, the first example is the tuple of ``value`` alone."""
    example = f"such as ({value!r},) or " if isinstance(kind, type) and isinstance(value, kind) else "such as "
    return f"a tuple, {example}()"


def check_fields(config: Any, where: str, allowed: str, *names: str, sound: Callable[[Any], bool]) -> None:
    """Raise ``UserError`` if the value of a field in ``names`` is not ``sound``; the message names all such fields.

    Args:
      config: a dataclass that holds the fields.
      where: the path of the dataclass in the config tree.
      allowed: a phrase that says what is allowed, such as ``at least 1 is needed``.
      sound: returns whether a value is allowed.
    """
    values = {name: getattr(config, name) for name in names}
    wrong = [
        f"{where}.{name} is {f'{value:,}' if type(value) is int else repr(value)}"
        for name, value in values.items()
        if not sound(value)
    ]
    if wrong:
        raise UserError(f"{', '.join(wrong)}; {allowed}")


def check_weights(config: Any, where: str, *names: str) -> None:
    """Raise ``UserError`` if a weight of a loss is negative, or so small or large that float32 loses the loss."""
    allowed = "at least 0 is needed, and 1e-6 to 1e6 where it is not 0"
    check_fields(config, where, allowed, *names, sound=lambda value: value == 0 or 1e-6 <= value <= 1e6)


def check_share(share: Any, others: Iterable[Any], where: str) -> None:
    """Raise ``UserError`` if a share is no number above 0, or next to nothing beside the sum of all, ``others``."""
    for one in (share, *others):
        if isinstance(one, bool) or not isinstance(one, int | float) or not 0 < one < _INFINITE:
            if one is share:
                raise UserError(f"{where} is {one!r}; a number above 0 is needed")
            return
    if share < _LEAST_SHARE * sum(others):
        raise UserError(f"{where} is {share!r}, less than a millionth of the sum of all; give more, or leave it out")


def without(tree: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return ``tree`` without the keys ``names``."""
    return {key: value for key, value in tree.items() if key not in names}


def differences(old: Any, new: Any, where: str = "config") -> list[str]:
    """Return the values that differ between two nested plain structures, as ``name: old -> new``.

    A key that ``old`` or ``new`` lacks stands for None; a group of keys that either lacks is "left out".
    """
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        keys = dict.fromkeys([*old, *new])
        return [d for key in keys for d in differences(old.get(key), new.get(key), f"{where}.{key}")]
    if isinstance(old, (list, tuple)) and isinstance(new, (list, tuple)) and len(old) == len(new):
        return [d for i, (o, n) in enumerate(zip(old, new, strict=True)) for d in differences(o, n, f"{where}[{i}]")]
    if isinstance(old, Mapping) and new is None:
        return [f"{where}: given -> left out"]
    if old is None and isinstance(new, Mapping):
        return [f"{where}: left out -> given"]
    return [] if old == new else [f"{where}: {old!r} -> {new!r}"]


def defaults(cls: type) -> dict[str, Any]:
    """Return the defaults of the fields of a dataclass as a plain tree, without the fields that have none."""
    tree = {}
    for field in dataclasses.fields(cls):
        value = _default(field)
        if value is not dataclasses.MISSING:
            tree[field.name] = dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value  # type: ignore[arg-type]
    return tree
