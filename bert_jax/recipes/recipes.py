"""Reads ``--config=NAME_OR_FILE[:argument] --config.key=value ...`` into one locked config tree.

A recipe is a Python file with ``get_config([argument])`` that returns a ``ConfigDict``. The recipes of this package are
also found by name (``quickstart`` or ``pretrain/quickstart``). A ``.json`` file, such as the config kept in a workdir,
is read as plain data. Each component checks its own keys later (``configuration.build``). Paths of a user's own
components become recorded names (``own_code``). ``with_values`` does the same for a call from Python, whose values have
types already.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import math
import os
import re
import reprlib
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from ml_collections import ConfigDict

from bert_jax.configuration import IN_PLACE_OF, defaults, nearest
from bert_jax.errors import UserError
from bert_jax.parts import catalogue
from bert_jax.parts.own_code import OWN_KEYS, at, recorded_names
from bert_jax.recipes import key_names
from bert_jax.storage import files, reading

OVERRIDE = re.compile(r"--?config\.(?P<key>[^=]+)(?:=(?P<value>.*))?", re.DOTALL)
KEYS = re.compile(r"[^.\[\]]+")
PATH = re.compile(r"[^.\[\]]+(\.[^.\[\]]+|\[[^.\[\]]+\])*")  # of KEYS, such as model.size or phases[0].num_steps


def load(recipe: str, overrides: Sequence[str] = (), trust_code: bool = False) -> ConfigDict:
    """Return the locked config of a recipe, with ``--config.key=value`` overrides applied in order.

    Args:
      trust_code: whether the components' own files that a ``.json`` recipe names may run.

    Raises:
      UserError: there is no such recipe, the file fails, a key is unknown, a value has a wrong type, or a component's
        own file is missing, lacks what it needs, or is named by a ``.json`` recipe alone.
    """
    config, folder, is_code = _read(recipe)
    return _changed(config, _typed(overrides), _parse_value, folder, is_code or trust_code)


def changed(tree: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return a copy of a config tree with ``--config.key=value`` overrides applied in order."""
    config = _as_config(_plain(tree), "config")
    result: dict[str, Any] = _changed(config, _typed(overrides), _parse_value).to_dict()
    return result


def _typed(overrides: Sequence[str]) -> list[tuple[str, str]]:
    """Return the key and the text of each override."""
    values = []
    for override in overrides:
        match = OVERRIDE.fullmatch(override)
        assert match, override
        if match["value"] is None:
            raise UserError(f"--config.{match['key']} has no value; write --config.{match['key']}=VALUE")
        if not PATH.fullmatch(match["key"]):
            raise UserError(f"--config.{match['key']} is not a key; write one such as --config.model.size=VALUE")
        values.append((match["key"], match["value"]))
    return values


def with_values(
    recipe: str | os.PathLike[str] | Mapping[str, Any], values: Mapping[str, Any], trust_code: bool = False
) -> ConfigDict:
    """Return the locked config of a recipe for a Python program, with new values for some of its keys.

    Args:
      recipe: what ``load`` takes, or a config tree, which is copied. The program asks for the code that a tree names;
        its paths are relative to the current folder.
      values: key -> value, such as ``{"model.size": "tiny"}``. A mapping replaces a whole group.
      trust_code: see ``load``.

    Raises:
      UserError: for the reasons of ``load``; but the type of a value is checked later, by its component.
    """
    if isinstance(recipe, str | os.PathLike):
        config, folder, is_code = _read(recipe)
    else:
        config, folder, is_code = _as_config(_plain(recipe), "config"), "", True
    if not isinstance(values, Mapping):
        raise UserError(f"overrides is {reprlib.repr(values)}; a dict is needed, key -> value")
    for key in values:
        if not isinstance(key, str) or not PATH.fullmatch(key):
            raise UserError(f"overrides has the key {key!r}; write a key of the recipe, such as 'model.size'")
    return _changed(config, values.items(), _value, folder, is_code or trust_code)


def derive(recipe: str, overrides: Sequence[str] = ()) -> ConfigDict:
    """Return the config of another recipe, unlocked and with all ``SETTINGS``, for a recipe that changes a few values.

    Args:
      recipe: a name or a file, as after ``--config=``; a path that is not absolute is relative to the current folder.
    """
    config = load(recipe, overrides).copy_and_resolve_references().unlock()
    config.update({group: {} for group in key_names.SETTINGS if group not in config})
    return config


def _read(recipe: str | os.PathLike[str]) -> tuple[ConfigDict, str, bool]:
    """Return (config, folder of the recipe, whether the recipe is code and not data)."""
    path, argument = _locate(os.fspath(recipe))
    is_code = not path.endswith(".json")
    return _run(path, argument) if is_code else _read_json(path), os.path.dirname(path), is_code


def _changed(
    config: ConfigDict,
    values: Collection[tuple[str, Any]],
    read: Callable[[Any, Any, str], Any],
    folder: str = "",
    asked: bool = True,
) -> ConfigDict:
    """Return a recipe's config with new ``values``, checked and locked. ``read`` converts each value for its key.

    ``asked``: whether the user asks for the files of components that the config names, relative to ``folder``.
    """
    before, changed = {key: at(config, key) for key in OWN_KEYS}, changed_keys(key for key, _ in values)
    recipe = _plain(config)
    for key, value in values:
        keys = KEYS.findall(key_names.full(key, config))
        key_names.check_names(keys, recipe, config)
        _set(config, keys, value, "config", read)
    key_names.check_attention(leaves(config))
    for key, name in recorded_names(config, folder, changed, asked).items():
        _set(config, key.split("."), name, "config", _value)
    _leave_out_keys_of_others(config, before, changed)
    _leave_out_roles_of_others(config, changed)
    try:
        json.dumps(_plain(config), ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError as error:  # JSON and Python can hold half of a character, but no file of a run can
        half = error.object[error.start]
        raise UserError(f"the recipe has {half!r}, half of a character; write whole ones") from error
    return config.lock()


def _leave_out_roles_of_others(config: ConfigDict, changed: Sequence[str]) -> None:
    """Remove the columns that a recipe named for roles that a task of another name, among ``changed``, has not."""
    for key in changed:
        where, name = key.removesuffix("task.name"), at(config, key)
        data = at(config, f"{where}data")
        known = isinstance(name, str) and isinstance(data, ConfigDict)
        if not known or not re.fullmatch(r"(tasks\.[^.]+\.)?", where):
            continue
        if name not in catalogue.parts("tasks", having="Task") and not catalogue.is_own(name):
            continue  # which the settings refuse
        roles: Any = getattr(catalogue.find("tasks", name, having="Task").Task, "roles", None)
        for group in ("columns", "strip_prefix") if roles else ():
            others = set(data.get(group) or ()) - {*roles.all, "id"}
            for role in others - {one.rpartition(".")[2] for one in changed if one.startswith(f"{where}data.{group}.")}:
                del data[group][role]


def _leave_out_keys_of_others(config: ConfigDict, before: Mapping[str, Any], changed: Sequence[str]) -> None:
    """Remove the keys that a recipe set for a part whose name was ``changed`` since ``before``.

    Those stay that the new part has too, and those that were given with it.
    """
    for key, (where, fields) in OWN_KEYS.items():
        group, category, name = at(config, where), catalogue.KEYS[key], at(config, key)
        if key not in changed or where in changed or before[key] in (None, name) or not isinstance(group, ConfigDict):
            continue
        of_recipe = [own for own in group if not any(f"{one}.".startswith(f"{where}.{own}.") for one in changed)]
        if of_recipe:
            own_class = getattr(catalogue.find(category.package, name, having=category.having), fields)
            for own in set(of_recipe) - {field.name for field in dataclasses.fields(own_class)}:
                del group[own]


def _plain(value: Any) -> Any:
    """Return a copy of a value of a config in which groups are dicts and paths are strings."""
    if isinstance(value, ConfigDict | Mapping):
        return {name: _plain(entry) for name, entry in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_plain(entry) for entry in value)
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def keys(tree: Mapping[str, Any]) -> list[str]:
    """Return the keys of a recipe, such as ``model.size``, and then those that it leaves to their defaults."""
    return list(leaves(tree) | leaves(defaults_for(tree)))


def defaults_for(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults of the keys that a recipe may have, as a tree."""
    from bert_jax.models.config import ModelConfig
    from bert_jax.recipes.finetuning_settings import FinetuningSettings
    from bert_jax.recipes.pretraining_settings import PretrainingSettings  # slow: it imports jax
    from bert_jax.training.optimizers import adamw
    from bert_jax.training.schedules import warmup_stable_decay

    settings = FinetuningSettings if key_names.is_finetuning(tree) else PretrainingSettings
    parts = {"model": ModelConfig, "optimizer": adamw.Optimizer, "schedule": warmup_stable_decay.Schedule}
    return defaults(settings) | {group: defaults(part) for group, part in parts.items()}


def leaves(tree: ConfigDict | Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return the values of a tree by their keys, such as ``model.size``; a group without keys is a value."""
    found = dict[str, Any]()
    for key, value in tree.items():
        group = isinstance(value, ConfigDict | Mapping) and value
        found |= leaves(value, f"{above}{key}.") if group else {f"{above}{key}": value}
    return found


def typed_keys(overrides: Sequence[str]) -> tuple[str, ...]:
    """Return the keys that ``overrides`` change: ``model.size`` for ``--config.model.size=tiny``."""
    return changed_keys(match["key"] for override in overrides if (match := OVERRIDE.fullmatch(override)))


def changed_keys(keys: Iterable[Any]) -> tuple[str, ...]:
    """Return keys, perhaps with places of tuples (``phases[0].num_steps``), with dots alone."""
    return tuple(".".join(KEYS.findall(str(key))) for key in keys)


def names() -> dict[str, Path]:
    """Return the recipes of this package as a dict: name, such as ``pretrain/quickstart`` -> file."""
    package = Path(__file__).resolve().parents[1]
    installed, checkout = package / "configs", package.parent / "configs"
    folder = installed if installed.is_dir() else checkout
    return {p.relative_to(folder).with_suffix("").as_posix(): p for p in sorted(folder.glob("*/*.py"))}


def in_folder(recipe: Any, folder: str) -> Any:
    """Return the name ``recipe`` with ``folder`` before it, if several folders have a recipe of that name.

    ``distil`` is ``finetune/distil`` for verbs that fine-tune. Anything else is returned as it is.
    """
    name, known = re.sub(":.*", "", recipe, flags=re.DOTALL) if isinstance(recipe, str) else "", names()
    several = sum(one.rpartition("/")[2] == name for one in known) > 1
    return f"{folder}/{recipe}" if several and f"{folder}/{name}" in known else recipe


def _locate(recipe: str) -> tuple[str, str | None]:
    """Return the path of the recipe's file, and the argument after the colon (None without a colon)."""
    match = re.fullmatch(r"((?:\w+://)?[^:]*)(?::(.*))?", recipe, re.DOTALL)
    if not match:
        raise UserError(f"--config={recipe} is not FILE[:argument] or a recipe's name")
    path, argument = match.groups()
    if path.endswith((".py", ".json")) or files.is_remote(path):
        if not files.as_path(path).is_file():
            hint = nearest(re.sub(r"^configs/|\.py$", "", path), names())
            raise UserError(f"no config file {path}; give a file or a recipe's name: {hint}")
        return path, argument
    known = names()
    matches = [name for name in known if path in (name, name.rpartition("/")[2])]
    if len(matches) > 1:
        raise UserError(f"recipe {path!r} is ambiguous; choose one of: {', '.join(matches)}")
    if not matches:
        choices = set(known) if "/" in path else {name.rpartition("/")[2] for name in known}
        raise UserError(f"unknown recipe {path!r}; {nearest(path, choices)}; or give a file that ends in .py or .json")
    return str(known[matches[0]]), argument


def _read_json(path: str) -> ConfigDict:
    try:
        value = json.loads(reading.read_bytes(files.as_path(path)))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON: {error}") from error
    return _as_config(value, path)


def _run(path: str, argument: str | None) -> ConfigDict:
    """Return the config that the ``get_config`` of a Python file returns.

    An exception in the file becomes a ``UserError`` of one line, which names the line of the file.
    """
    module = ModuleType("bert_jax_recipe")
    module.__file__ = path
    source = reading.read_bytes(files.as_path(path))
    try:
        exec(compile(source, path, "exec"), module.__dict__)
        get_config = getattr(module, "get_config", None)
        if get_config is None:
            raise UserError(f"{path} has no function get_config()")
        if argument is not None and not inspect.signature(get_config).parameters:
            raise UserError(f"{path} takes no argument, found {':' + argument!r}")
        config = get_config() if argument is None else get_config(argument)
    except UserError:
        raise
    except SyntaxError as error:
        raise UserError(f"{error.filename}:{error.lineno}: SyntaxError: {error.msg}") from error
    except (Exception, SystemExit) as error:
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
        place = f"{path}:{lines[-1]}" if lines else path
        if isinstance(error, ValueError):  # raised by recipes for an unknown argument
            raise UserError(f"{place}: {error}") from error
        raise UserError(f"{place}: {type(error).__name__}: {error}") from error
    return _as_config(config, path)


def _as_config(value: Any, path: str) -> ConfigDict:
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


def _set(node: Any, keys: list[str], new: Any, where: str, read: Callable[[Any, Any, str], Any]) -> Any:
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
        return type(node)([*node[:i], _set(node[i], rest, new, f"{where}[{i}]", read), *node[i + 1 :]])
    if not isinstance(node, ConfigDict | dict):
        raise UserError(f"{where} is a value ({node!r}), it has no key {key!r}")
    if where == "config" and key not in node and key not in (known := key_names.groups(node)):
        raise UserError(f"unknown key {where}.{key}; {nearest(key, {*node, *known})}")
    if where == "config.corpus" and key in ("source", "options") and (parts := node.get("parts")):
        flags = ", ".join(f"--{where}.parts.{part}.{key}" for part in parts)
        raise UserError(f"{where}.{key} does not count beside {where}.parts, which have their own; give {flags}")
    old = node.get(key, ConfigDict() if rest else None)
    value = _set(old, rest, new, f"{where}.{key}", read)
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


def _value(value: Any, old: Any, where: str) -> Any:
    """Return ``value`` as it replaces ``old`` in a config: a mapping becomes a group, and a group needs a mapping."""
    value = _plain(value)
    if isinstance(old, tuple | list) and isinstance(value, str):
        return type(old)([value])
    if isinstance(old, ConfigDict | dict) and not isinstance(value, dict | None):
        raise UserError(
            f"{where} is a group; set one of its keys ({', '.join(old)}) or give it whole: \"{{'key': value}}\""
        )
    return _group(value, where) if isinstance(value, dict) else value


def _parse_value(text: str, old: Any, where: str) -> Any:
    """Return ``text`` as a value that replaces ``old``; the component that reads the key checks its type.

    If ``old`` is a string, that is ``text``. Otherwise ``text`` is read as a Python literal if it is one, else as a
    string. Where ``old`` is a tuple, ``1,2``, ``a,b`` and a single value become one.

    Raises ``UserError`` if ``old`` is a group and ``text`` is no dict.
    """
    if isinstance(old, str):
        return text
    value = literal(text)
    if isinstance(old, tuple | list) and value is not None and not isinstance(value, tuple | list):
        value = tuple(text.split(",")) if all(isinstance(one, str) for one in old) else (value,)
    if isinstance(old, float) and type(value) is int:
        value = float(value) if abs(value) <= sys.float_info.max else math.inf
    return _value(value, old, where)


def literal(text: str) -> Any:
    """Return ``text`` as a Python literal if it is one; ``true`` and ``false`` too."""
    try:
        value = ast.literal_eval(text)
        return ast.literal_eval(f"({text})") if "#" in text else value  # no comment, which would swallow the bracket
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):  # raised if the text is not a literal
        return {"true": True, "false": False}.get(text.lower(), text)
