"""Reads users' own components, decides whether they may run, and keeps a copy of them in the workdir.

A component's file runs if the user asks for it: by its path (or the name of an installed entry point) in a Python
recipe or on the command line, or by ``--trust_code``. A ``.json`` recipe, ``run.json`` or a checkpoint only names code.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from bert_jax.configuration import nearest
from bert_jax.errors import UserError
from bert_jax.parts import catalogue
from bert_jax.parts.catalogue import Category, OwnCode
from bert_jax.storage import files, reading

# Key that names a part -> (the group with the part's own keys, the dataclass in its file that has them as fields).
OWN_KEYS = {
    "objective.name": ("objective", "Config"),
    "objective.members.*.name": ("objective.members.*", "Config"),
    "phases.*.objective.name": ("phases.*.objective", "Config"),
    "phases.*.objective.members.*.name": ("phases.*.objective.members.*", "Config"),
    "objective.masking.strategy": ("objective.masking.options", "Config"),
    "objective.arrangement": ("objective.arrangement_options", "Arrangement"),
    "task.name": ("task", "Config"),
    "data.format": ("data.options", "Reader"),
    "tasks.*.task.name": ("tasks.*.task", "Config"),
    "tasks.*.data.format": ("tasks.*.data.options", "Reader"),
    "training.evaluations.*.name": ("training.evaluations.*", "Config"),
    "optimizer.name": ("optimizer", "Optimizer"),
    "schedule.name": ("schedule", "Schedule"),
    "phases.*.schedule.name": ("phases.*.schedule", "Schedule"),
}
FILE = "file"  # key of the metadata of a field that names a file, whose content counts in the identity of a run


def recorded_names(
    config: Mapping[str, Any], folder: str, typed: Collection[str] = (), asked: bool = True
) -> dict[str, str]:
    """Return the recorded names of the users' own components that a recipe names by a path or an entry point.

    They are returned by key, such as ``objective.name``. Nothing is run yet, but from now on it may be, in this
    process.

    Args:
      folder: the recipe's folder, to which the paths in it are relative.
      typed: the keys that were given on the command line; their paths are relative to the current folder.
      asked: whether the user asks for all code that the recipe names. If not, only code that typed keys name is asked
        for.

    Raises:
      UserError: a file is missing, or lacks what its category of components needs; or the recipe names code that the
        user has not asked for.
    """
    found = {}
    for key, category, name in _component_keys(config):
        by_user = any(key == one or key.startswith(f"{one}.") for one in typed)
        code = read(category, name, f"config.{key}", "" if by_user else folder)
        if code is None:
            continue
        if not (asked or by_user or catalogue.find_trusted(code.name)):
            value = name if code.module else _shortest(code.path)
            raise UserError(
                f"config.{key} is code of a user's own, {name}, which a .json recipe only names: read it, then add "
                f"--config.{key}={value} or --trust_code (in Python: trust_code=True)"
            )
        catalogue.trust(code)
        found[key] = code.name
    return found


def _component_keys(config: Mapping[str, Any]) -> Iterator[tuple[str, Category, str]]:
    """Yield the keys of a recipe that name components: (key, category, name)."""
    for pattern, category in catalogue.KEYS.items():
        for key, value in _matches(config, pattern.split(".")):
            if isinstance(value, str) and value:
                yield key, category, value


def _matches(tree: Any, pattern: list[str], where: str = "") -> Iterator[tuple[str, Any]]:
    if not pattern:
        yield where[1:], tree
    elif isinstance(tree, Mapping | ConfigDict):
        for key in tree if pattern[0] == "*" else [pattern[0]]:
            if key in tree:
                yield from _matches(tree[key], pattern[1:], f"{where}.{key}")
    elif isinstance(tree, tuple | list) and pattern[0] == "*":
        for place, value in enumerate(tree):
            yield from _matches(value, pattern[1:], f"{where}.{place}")


def read(category: Category, name: str, where: str, folder: str = "") -> OwnCode | None:
    """Return the user's own code that ``name`` names; None if it names no such code, or is a recorded name already.

    Args:
      where: the key or flag that holds the name, for error messages.
      folder: the folder to which a path is relative; "" is the current folder.

    Raises:
      UserError: the file is missing, is no Python file, or does not define what its category needs.
    """
    if catalogue.is_path(name):
        code: OwnCode | None = _read_file(name, where, folder)
    elif catalogue.is_own(name) or name in catalogue.parts(category.package, category.having):
        return None
    else:
        code = _read_entry_point(category, name)
    if code is not None:
        code.check(category)
    return code


def _read_file(name: str, where: str, folder: str) -> OwnCode:
    path = name if files.is_remote(name) else os.path.join(folder, os.path.expanduser(name.removeprefix("./")))
    place = files.as_path(path)
    path = os.fspath(place) if files.is_remote(path) else os.path.abspath(place)
    if not place.is_file():
        beside = [one.name for one in place.parent.glob("*.py")] if place.parent.is_dir() else []
        hint = f"; {nearest(place.name, beside)}" if beside else ""
        begins = "" if os.path.isabs(name) else " (a recipe's paths begin at its folder, typed ones at the current one)"
        raise UserError(f"{where} is {name!r}, and there is no file {path}{begins}{hint}")
    if not path.endswith(".py"):
        raise UserError(f"{where} is {name!r}; a component's file ends in .py")
    return OwnCode(path, reading.read_bytes(place))


def _read_entry_point(category: Category, name: str) -> OwnCode | None:
    """Return the module of the entry point ``name`` of an installed package, importing nothing; None if none has it."""
    for entry in importlib.metadata.entry_points(group=f"bert_jax.{category.package}", name=name):
        top, *rest = entry.module.split(".")
        spec = importlib.util.find_spec(top)
        file = Path(spec.origin if spec and spec.origin else top)
        if rest:
            place = file.parent.joinpath(*rest)
            file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        if not file.is_file():
            raise UserError(f"the entry point {name} is {entry.value}, which is not there; install its package again")
        return OwnCode(os.fspath(file), reading.read_bytes(file), entry.module)
    return None


def at(tree: Any, key: str) -> Any:
    """Return the value at the path ``key`` of a tree; None if there is none."""
    for name in key.split("."):
        tree = tree.get(name) if isinstance(tree, Mapping | ConfigDict) else None
    return tree


def with_contents(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``tree`` of a recipe in which files that parts read are named by their content.

    These are the files that fields with the metadata ``FILE`` name: ``words.txt`` becomes ``words.txt@`` and 16 hex
    digits of its sha256.
    """
    named = {name: dict(value) if isinstance(value, Mapping) else value for name, value in tree.items()}
    keys = [(*one, pattern) for pattern in OWN_KEYS for one in _matches(named, pattern.split("."))]
    for key, name, pattern in keys:
        (where, fields), category = OWN_KEYS[pattern], catalogue.KEYS[pattern]
        where = ".".join(own if one == "*" else one for one, own in zip(where.split("."), key.split("."), strict=False))
        group = at(named, where)
        if not (isinstance(name, str) and name and isinstance(group, Mapping)):
            continue
        own = getattr(catalogue.find(category.package, name, having=category.having), fields)
        for field, content in contents(own, group, f"config.{where}").items():
            named = _replace(named, [*where.split("."), field], content)
    return named


def contents(part: type, values: Mapping[str, Any], where: str) -> dict[str, str]:
    """Return the files that ``values`` of fields of ``part`` name, each as its name, @ and 16 hex digits of its sha256.

    Raises ``UserError`` if there is no such file; ``where`` is the path of ``values`` in the config.
    """
    found = {}
    for field in dataclasses.fields(part):
        path = values.get(field.name, field.default)
        if FILE in field.metadata and isinstance(path, str) and path:
            place = files.as_path(path)
            if not place.is_file():
                raise UserError(f"{where}.{field.name} is {path!r}, and there is no such file")
            found[field.name] = f"{place.name}@{files.sha256(place)[:16]}"
    return found


def _replace(tree: Mapping[str, Any], keys: list[str], value: str) -> dict[str, Any]:
    key, *rest = keys
    return {**tree, key: _replace(tree[key], rest, value) if rest else value}


def typed_name(category: Category, name: str | None, flag: str) -> str | None:
    """Return the name by which ``find`` finds the component that was typed, as ``name``, after ``flag``."""
    code = read(category, name, flag) if name else None
    if code is None:
        return name
    catalogue.trust(code)
    return code.name


def _shortest(path: str) -> str:
    return path if files.is_remote(path) else min(path, os.path.relpath(path), key=len)


# ---- The copies in a workdir -----------------------------------------------------------------------------------------


def keep_copies(workdir: str, *recorded: Any) -> None:
    """Write a copy into ``workdir`` of each own file that the recorded trees name and that this process may run."""
    for name in sorted({name for tree in recorded for name in catalogue.names_in(tree)}):
        code, place = catalogue.find_trusted(name), files.as_path(workdir) / catalogue.copy_of(name)
        if code is not None and not reading.holds(place, code.source):
            files.write_bytes(place, code.source)


def trust_copies(source: str) -> None:
    """Trust the code of which the workdir ``source`` (or ``WORKDIR@step``) has copies: let it run.

    A copy that was changed has another recorded name than the run, so it is not taken for the run's.
    """
    workdir = source if files.as_path(source).exists() else re.sub(r"@[0-9]+$", "", source)
    for place in sorted((files.as_path(workdir) / catalogue.COPIES).glob("*/*.py")):
        catalogue.trust(OwnCode(os.fspath(place), reading.read_bytes(place)))
