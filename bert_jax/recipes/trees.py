"""Config trees of recipes: their groups and leaves, and how a new value takes the place of an old one."""

from __future__ import annotations

import ast
import math
import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

from ml_collections import ConfigDict

from bert_jax.configuration import IN_PLACE_OF, nearest
from bert_jax.errors import UserError
from bert_jax.recipes import key_names


def as_config(value: Any, path: str) -> ConfigDict:
    """Return ``value``, which comes from ``path``, as an unlocked config. Raises ``UserError`` if it is no mapping."""
    if not isinstance(value, ConfigDict | dict):
        raise UserError(f"{path} gives {type(value).__name__}; a ConfigDict is needed")
    config = _group(value, path)
    config.unlock()
    return config


def _group(value: Any, where: str) -> ConfigDict:
    """Return a mapping as a group of a config. Raises ``UserError`` for a key that is not text or has a dot."""
    _check_keys(value, where)
    return ConfigDict(value)


def _check_keys(value: Any, where: str) -> None:
    if isinstance(value, ConfigDict | Mapping):
        for key, inner in value.items():
            if not isinstance(key, str) or "." in key:
                raise UserError(f"{where} has the key {key!r}; a key is text without dots, its groups are nested")
            _check_keys(inner, where)


def plain(value: Any) -> Any:
    """Return a copy of a value of a config in which groups are dicts and paths are strings."""
    if isinstance(value, ConfigDict | Mapping):
        return {name: plain(entry) for name, entry in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(plain(entry) for entry in value)
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def leaves(tree: ConfigDict | Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return the values of a tree by their keys, such as ``model.size``; a group without keys is a value."""
    found = dict[str, Any]()
    for key, value in tree.items():
        group = isinstance(value, ConfigDict | Mapping) and value
        found |= leaves(value, f"{above}{key}.") if group else {f"{above}{key}": value}
    return found


def set_value(node: Any, keys: list[str], new: Any, where: str, read: Callable[[Any, Any, str], Any]) -> Any:
    """Return ``node`` with the value at the path ``keys`` replaced by what ``read`` makes of ``new``.

    A ``ConfigDict`` is changed in place, so other references to it see the change. A new top-level key is an error
    unless recipes of that kind may have it. A new key at a lower level is checked later, by its component.
    """
    if not keys:
        return read(new, node, where)
    key, *rest = keys
    if isinstance(node, tuple | list):
        if not re.fullmatch("[0-9]+", key) or int(key) >= len(node):
            raise UserError(f"{where} has {len(node)} entries, numbered from 0; found [{key}]")
        i = int(key)
        return type(node)([*node[:i], set_value(node[i], rest, new, f"{where}[{i}]", read), *node[i + 1 :]])
    if not isinstance(node, ConfigDict | dict):
        raise UserError(f"{where} is a value ({node!r}), it has no key {key!r}")
    if where == "config" and key not in node and key not in (known := key_names.groups(node)):
        raise UserError(f"unknown key {where}.{key}; {nearest(key, {*node, *known})}")
    if where == "config.corpus" and key in ("source", "options") and (parts := node.get("parts")):
        flags = ", ".join(f"--{where}.parts.{part}.{key}" for part in parts)
        raise UserError(f"{where}.{key} does not count beside {where}.parts, which have their own; give {flags}")
    old = node.get(key, ConfigDict() if rest else None)
    value = set_value(old, rest, new, f"{where}.{key}", read)
    if isinstance(node, dict):
        return {**node, key: value}
    with node.ignore_type():
        if value is not old or key not in node:
            node[key] = value
        for group in IN_PLACE_OF:
            for other in group if key in group and value is not None else ():
                if other != key and other in node:
                    del node[other]
    return node


def converted(value: Any, old: Any, where: str) -> Any:
    """Return ``value`` as it replaces ``old`` in a config: a mapping becomes a group, and a group needs a mapping."""
    value = plain(value)
    if isinstance(old, tuple | list) and isinstance(value, str):
        return type(old)([value])
    if isinstance(old, ConfigDict | dict) and not isinstance(value, dict | None):
        raise UserError(
            f"{where} is a group; set one of its keys ({', '.join(old)}) or give it whole: \"{{'key': value}}\""
        )
    return _group(value, where) if isinstance(value, dict) else value


def parsed(text: str, old: Any, where: str) -> Any:
    """Return ``text`` as a value that replaces ``old``; the component that reads the key checks its type.

    If ``old`` is a string, the value is ``text``. Otherwise ``text`` is read as a Python literal if it is one, else as
    a string. Where ``old`` is a tuple, ``1,2``, ``a,b`` and a single value become a tuple.

    Raises ``UserError`` if ``old`` is a group and ``text`` is no dict.
    """
    if isinstance(old, str):
        return text
    value = literal(text)
    if isinstance(old, tuple | list) and value is not None and not isinstance(value, tuple | list):
        value = tuple(text.split(",")) if all(isinstance(one, str) for one in old) else (value,)
    if isinstance(old, float) and type(value) is int:
        value = float(value) if abs(value) <= sys.float_info.max else math.inf
    return converted(value, old, where)


def literal(text: str) -> Any:
    """Return ``text`` as a Python literal if it is one; ``true`` and ``false`` too."""
    try:
        value = ast.literal_eval(text)
        return ast.literal_eval(f"({text})") if "#" in text else value  # no comment, which would swallow the bracket
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):  # raised if the text is not a literal
        return {"true": True, "false": False}.get(text.lower(), text)
