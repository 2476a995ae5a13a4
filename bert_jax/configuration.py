"""Turns a plain config tree into frozen dataclasses; raises errors that name unknown keys and values of wrong types."""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from bert_jax.errors import UserError

T = TypeVar("T")


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return a phrase that names the valid choice closest to ``name``, followed by all valid choices."""
    valid = sorted(valid)
    close = difflib.get_close_matches(name, valid, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}valid: {', '.join(valid)}"


def choose(kind: str, name: str, table: Mapping[str, T]) -> T:
    """Return ``table[name]``. Raises ``UserError`` that lists the valid names if ``name`` is not in the table."""
    if not isinstance(name, str) or name not in table:
        raise UserError(f"unknown {kind} {name!r}; {nearest(str(name), table)}")
    return table[name]


WHOLE_BITS = 63  # integers in a config must fit into this many bits, because numpy and jax take no larger ones
INFINITE = 2.0**128 - 2.0**103  # numbers from here on are infinite in float32, to which devices round them
ONE = 1 - 2.0**-25  # numbers from here to 1 are 1 in float32


def build(cls: type[T], mapping: Mapping[str, Any], where: str, also: Iterable[str] = ()) -> T:
    """Return the frozen dataclass ``cls`` made from a config sub-tree called ``where``.

    Nested mappings become nested dataclasses, and lists become tuples. Integers are accepted for floats; no other type
    is converted. ``also`` lists keys of the sub-tree that are valid because other code reads them. Raises ``UserError``
    naming every unknown key with the nearest valid one, every missing required key, and every value of a wrong type.
    """
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init}  # type: ignore[arg-type]
    hints = typing.get_type_hints(cls)
    valid = [*fields, *also]
    problems = [f"unknown key {where}.{key}; {nearest(str(key), valid)}" for key in mapping if key not in valid]
    values = {}
    for name, field in fields.items():
        if name in mapping:
            try:
                values[name] = _convert(mapping[name], hints[name], f"{where}.{name}")
            except UserError as error:
                problems.append(str(error))
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            problems.append(f"missing key {where}.{name}")
    if problems:
        raise UserError("; ".join(problems))
    made = cls(**values)
    floats = [name for name, value in values.items() if isinstance(value, float)]
    check_fields(made, where, "below 3.4e38 is needed, for float32", *floats, sound=lambda value: abs(value) < INFINITE)
    return made


def _convert(value: Any, hint: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value in (None, "None") and type(None) in arguments:  # "None": typed in place of a text
            return None
        [hint] = [a for a in arguments if a is not type(None)]
        return _convert(value, hint, where)
    if origin is typing.Literal:
        if value not in arguments:
            raise UserError(f"{where} is {value!r}; allowed: {', '.join(map(repr, arguments))}")
        return value
    if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
        return build(hint, value, where)  # type: ignore[arg-type]
    if origin is tuple and arguments[0] is str and isinstance(value, str):
        return (value,)
    if origin is tuple and isinstance(value, (list, tuple)):
        return tuple(_convert(v, arguments[0], f"{where}[{i}]") for i, v in enumerate(value))
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise UserError(f"{where} is {value}; a finite number is needed")
        return float(value)
    if hint is Any or (origin in (dict, Mapping) and isinstance(value, Mapping)):
        return value
    if isinstance(hint, type) and isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        if hint is int and isinstance(value, int) and abs(value) >= 2**WHOLE_BITS:
            raise UserError(f"{where} has {len(str(abs(value)))} digits; a whole number below 2^{WHOLE_BITS} is needed")
        return value
    expected = _tuple_of(arguments[0], value) if origin is tuple else getattr(hint, "__name__", hint)
    raise UserError(f"{where} is {value!r}; expected {expected}")


def _tuple_of(kind: Any, value: Any) -> str:
    """Return a phrase that asks for a tuple of ``kind``, with an example.

    The example holds ``value`` if ``value`` has the type ``kind``.
    """
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
    if wrong := unsound(config, where, allowed, *names, sound=sound):
        raise UserError(wrong)


def unsound(config: Any, where: str, allowed: str, *names: str, sound: Callable[[Any], bool]) -> str:
    """Return the message that ``check_fields`` would raise, or "" if all fields are valid."""
    values = {name: getattr(config, name) for name in names}
    wrong = [
        f"{where}.{name} is {f'{value:,}' if type(value) is int else repr(value)}"
        for name, value in values.items()
        if not sound(value)
    ]
    return f"{', '.join(wrong)}; {allowed}" if wrong else ""


def check_choices(config: Any, where: str) -> None:
    """Raise ``UserError`` if a field of the dataclass ``config`` has a value that its ``Literal`` type does not allow.

    The message names all such fields.
    """
    hints = typing.get_type_hints(type(config))
    choices = {name: typing.get_args(hint) for name, hint in hints.items() if typing.get_origin(hint) is typing.Literal}
    wrong = [
        f"{where}.{name} is {getattr(config, name)!r}; allowed: {', '.join(map(repr, allowed))}"
        for name, allowed in choices.items()
        if getattr(config, name) not in allowed
    ]
    if wrong:
        raise UserError("; ".join(wrong))


def differences(
    old: Any, new: Any, where: str = "config", absent: Mapping[str, Any] = types.MappingProxyType({})
) -> list[str]:
    """Return the values that differ between two nested plain structures, as ``name: old -> new``.

    Args:
      absent: for keys missing from ``old``, the value that each key stood for when ``old`` was recorded (see
        ``old_defaults``). A key missing from ``absent`` too stands for None.
    """
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        found = []
        for key in dict.fromkeys([*old, *new]):
            inner = absent.get(key)
            meant = inner if isinstance(inner, Mapping) else {}
            found += differences(old.get(key, inner), new.get(key), f"{where}.{key}", meant)
        return found
    if isinstance(old, (list, tuple)) and isinstance(new, (list, tuple)) and len(old) == len(new):
        return [d for i, (o, n) in enumerate(zip(old, new, strict=True)) for d in differences(o, n, f"{where}[{i}]")]
    return [] if old == new else [f"{where}: {old!r} -> {new!r}"]


BEFORE = "before"


def changed(default: Any, before: Any) -> Any:
    """Return a field of a frozen dataclass whose default was changed from ``before`` to ``default``.

    If a recorded config has no value for the field, the field is read as ``before``, not as ``default``.
    """
    return dataclasses.field(default=default, metadata={BEFORE: before})


def old_defaults(config: Any) -> dict[str, Any]:
    """Return, as a plain tree, the value that each key stands for if a recorded config lacks the key.

    The value is the key's default, or ``before`` if the field was made by ``changed``.

    Args:
      config: a dataclass type or an instance. Required fields of a type are left out.
    """
    found = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name, dataclasses.MISSING)
        if isinstance(config, type) and field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        value = field.metadata.get(BEFORE, value)
        if value is not dataclasses.MISSING:
            found[field.name] = old_defaults(value) if dataclasses.is_dataclass(value) else value
    return found


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tree ``base`` with the leaves of the tree ``over`` in place of its own leaves."""
    both = {
        key for key in base.keys() & over.keys() if isinstance(base[key], Mapping) and isinstance(over[key], Mapping)
    }
    return {**base, **over, **{key: merged(base[key], over[key]) for key in both}}


def recall(cls: type[T], recorded: Mapping[str, Any], where: str) -> T:
    """Return the config built from ``recorded``, a dictionary saved by this or an earlier version of this library.

    A key that did not exist in that version gets the value that matches how that version behaved.
    """
    return build(cls, merged(old_defaults(cls), recorded), where)


def unknown_keys(cls: type, recorded: Mapping[str, Any], where: str = "config") -> list[str]:
    """Return the recorded keys that ``cls`` no longer has, with their values."""
    hints, found = typing.get_type_hints(cls), []
    for name, value in recorded.items():
        if name not in hints:
            found.append(f"{where}.{name} ({value!r})")
        elif dataclasses.is_dataclass(hints[name]) and isinstance(value, Mapping):
            found += unknown_keys(hints[name], value, f"{where}.{name}")  # type: ignore[arg-type]
    return found


def unnamed_kept(cls: type, config: Any, named: Any, recorded: Mapping[str, Any]) -> Any:
    """Return ``config`` plus the ``recorded`` value of each key of ``cls`` that is neither in it nor in ``named``."""
    if not isinstance(config, Mapping) or not isinstance(named, Mapping):
        return config
    hints, kept = typing.get_type_hints(cls), dict(config)
    for name, value in recorded.items():
        if dataclasses.is_dataclass(hints.get(name)):
            if isinstance(value, Mapping):
                kept[name] = unnamed_kept(hints[name], config.get(name, {}), named.get(name, {}), value)
        elif name in hints and name not in config and name not in named:
            kept[name] = value
    return kept
