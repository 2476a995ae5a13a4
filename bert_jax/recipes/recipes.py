"""Reads ``--config=NAME_OR_FILE[:argument] --config.key=value ...`` into one locked config tree.

A recipe is a Python file with ``get_config([argument])`` that returns a ``ConfigDict``. The recipes of this package are
also found by name (``quickstart`` or ``pretrain/quickstart``). A ``.json`` file, such as the config kept in a workdir,
is read as plain data. Each component checks its keys later (``configuration.build``). Paths of a user's own
components become recorded names (``own_code``). ``with_values`` does the same for a call from Python, whose values have
types already.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import re
import reprlib
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from ml_collections import ConfigDict

from bert_jax.configuration import defaults, nearest
from bert_jax.errors import UserError
from bert_jax.parts import catalogue
from bert_jax.parts.own_code import OWN_KEYS, at, recorded_names
from bert_jax.recipes import key_names
from bert_jax.recipes.trees import as_config, converted, leaves, parsed, plain, set_value
from bert_jax.storage import files, reading

OVERRIDE = re.compile(r"--?config\.(?P<key>[^=]+)(?:=(?P<value>.*))?", re.DOTALL)
KEYS = re.compile(r"[^.\[\]]+")
PATH = re.compile(r"[^.\[\]]+(\.[^.\[\]]+|\[[^.\[\]]+\])*")  # of KEYS, such as model.size or phases[0].num_steps


def load(recipe: str, overrides: Sequence[str] = (), trust_code: bool = False) -> ConfigDict:
    """Return the locked config of a recipe, with ``--config.key=value`` overrides applied in order.

    Args:
      trust_code: whether the users' own files that a ``.json`` recipe names may run.

    Raises:
      UserError: there is no such recipe, the file fails, a key is unknown, a value has a wrong type, or a user's own
        file is missing, lacks what it needs, or is named by a ``.json`` recipe alone.
    """
    config, folder, is_code = _read(recipe)
    return _changed(config, _keys_and_texts(overrides), parsed, folder, is_code or trust_code)


def changed(tree: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return a copy of a config tree with ``--config.key=value`` overrides applied in order."""
    config = as_config(plain(tree), "config")
    result: dict[str, Any] = _changed(config, _keys_and_texts(overrides), parsed).to_dict()
    return result


def _keys_and_texts(overrides: Sequence[str]) -> list[tuple[str, str]]:
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
        config, folder, is_code = as_config(plain(recipe), "config"), "", True
    if not isinstance(values, Mapping):
        raise UserError(f"overrides is {reprlib.repr(values)}; a dict is needed, key -> value")
    for key in values:
        if not isinstance(key, str) or not PATH.fullmatch(key):
            raise UserError(f"overrides has the key {key!r}; write a key of the recipe, such as 'model.size'")
    return _changed(config, values.items(), converted, folder, is_code or trust_code)


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
    recipe = plain(config)
    for key, value in values:
        keys = KEYS.findall(key_names.full(key, config))
        key_names.check_names(keys, recipe, config)
        set_value(config, keys, value, "config", read)
    key_names.check_attention(leaves(config))
    for key, name in recorded_names(config, folder, changed, asked).items():
        set_value(config, key.split("."), name, "config", converted)
    _leave_out_keys_of_others(config, before, changed)
    _leave_out_roles_of_others(config, changed)
    try:
        json.dumps(plain(config), ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError as error:  # JSON and Python can hold half of a character, but no file of a run can
        half = error.object[error.start]
        raise UserError(f"the recipe has {half!r}, half of a character; write whole ones") from error
    return config.lock()


def _leave_out_roles_of_others(config: ConfigDict, changed: Sequence[str]) -> None:
    """Remove the recipe's columns for roles that its task lacks, if the name of the task has ``changed``."""
    for key in changed:
        where, name = key.removesuffix("task.name"), at(config, key)
        data = at(config, f"{where}data")
        known = isinstance(name, str) and isinstance(data, ConfigDict)
        if not known or not re.fullmatch(r"(tasks\.[^.]+\.)?", where):
            continue
        if name not in catalogue.parts("tasks", having="Task") and not catalogue.is_own(name):
            continue  # the settings refuse such a name
        roles: Any = getattr(catalogue.find("tasks", name, having="Task").Task, "roles", None)
        for group in ("columns", "strip_prefix") if roles else ():
            others = set(data.get(group) or ()) - {*roles.all, "id"}
            for role in others - {one.rpartition(".")[2] for one in changed if one.startswith(f"{where}data.{group}.")}:
                del data[group][role]


def _leave_out_keys_of_others(config: ConfigDict, before: Mapping[str, Any], changed: Sequence[str]) -> None:
    """Remove the keys that a recipe set for a part whose name was ``changed`` since ``before``.

    A key stays if the new part has it too, or if it was given with the new name.
    """
    for key, (where, fields) in OWN_KEYS.items():
        group, category, name = at(config, where), catalogue.KEYS[key], at(config, key)
        if key not in changed or where in changed or before[key] in (None, name) or not isinstance(group, ConfigDict):
            continue
        of_recipe = [field for field in group if not any(f"{one}.".startswith(f"{where}.{field}.") for one in changed)]
        if of_recipe:
            part = getattr(catalogue.find(category.package, name, having=category.having), fields)
            for name in set(of_recipe) - {field.name for field in dataclasses.fields(part)}:
                del group[name]


def keys(tree: Mapping[str, Any]) -> list[str]:
    """Return the keys of a recipe, such as ``model.size``, and then the keys that it leaves to their defaults."""
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
        if files.as_path(f"{path}.py").is_file():
            raise UserError(f"unknown recipe {path!r}; the file of that name is --config={path}.py")
        raise UserError(f"unknown recipe {path!r}; {nearest(path, choices)}; or give a file that ends in .py or .json")
    return str(known[matches[0]]), argument


def _read_json(path: str) -> ConfigDict:
    try:
        value = json.loads(reading.read_bytes(files.as_path(path)))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON: {error}") from error
    return as_config(value, path)


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
    return as_config(config, path)
