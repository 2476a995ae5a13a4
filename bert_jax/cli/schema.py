"""Print the keys of recipes as JSON Schema, for editors and programs; of one recipe with its values as defaults."""

from __future__ import annotations

import argparse
import collections.abc
import dataclasses
import json
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from bert_jax import configuration
from bert_jax.cli.flags import add_trust
from bert_jax.parts import catalogue, field_lines
from bert_jax.recipes import key_names, recipes, trees

Schema = dict[str, Any]
# The lines about keys that name a part, and about keys that no dataclass has.
LINES = {
    "model.encoder": "a file of bert_jax/models/encoders",
    "model.size": "a name of the encoder's sizes, such as tiny, mini, small, base, large; the keys below change it",
    "model.vocab_size": "number of embeddings; if not given, the size of the vocabulary",
    "model.attention_kernel": "what computes attention, or your own file; all give the same result but for rounding",
    "objective.name": "a file of bert_jax/objectives; not beside members",
    "objective.members": "NAME -> name, keys and share (1.0) of an objective: the batches are of several",
    "optimizer.name": (
        "adamw, adamax (MT-DNN's), lamb (for very large batches), stable_adamw (ModernBERT's), muon or a file of your "
        "own; the keys below are theirs"
    ),
    "schedule.name": (
        "what follows the warm-up: linear_from_zero, linear, cosine, inverse_sqrt, warmup_stable_decay or your own file"
    ),
    "task.name": "a file of bert_jax/tasks",
    "training.evaluations.*.name": "a file of bert_jax/runs/evaluations",
}
# (class, field) of fields that are no keys: the program sets them, or they stand above.
NOT_KEYS = {("Phase", "kind"), ("ModelConfig", "vocab_size"), ("Config", "rate"), ("Config", "attention")}
NOT_KEYS |= {("TransformerConfig", "attention_kernel")}
_OWN = "[./:@]"  # the name of a part that has such a character is a file of the user's, whose keys are not known here


class _Choice(NamedTuple):
    """A key of a group that names a part, and where the keys of the part are.

    Attributes:
      key: an entry of ``catalogue.KEYS``.
      fields: the dataclass in the part's file whose fields are its keys.
      under: the key of the group that has them; "": they are keys of the group itself.
      default: the part of a group that names none; "": any, so that the keys of all parts are allowed.
    """

    key: str
    fields: str
    under: str = ""
    default: str = ""


class _Group(NamedTuple):
    """Keys with parts among them: their path, the dataclass that has the keys of all parts, if any, and the choices."""

    path: str
    common: type | None
    choices: tuple[_Choice, ...] = ()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    given = "a recipe's name, or a file, perhaps with :argument (default: the keys of all recipes)"
    parser.add_argument("recipe", nargs="?", metavar="RECIPE", help=given)
    add_trust(parser)


def run(arguments: argparse.Namespace) -> None:
    tree = recipes.load(arguments.recipe, trust_code=arguments.trust_code) if arguments.recipe else None
    print(json.dumps(schema(tree), indent=1, ensure_ascii=False))


def schema(recipe: Mapping[str, Any] | None = None) -> Schema:
    """Return the schema of all recipes, or of the kind of ``recipe``, with its values as defaults."""
    definitions = {name: _definition(group) for name, group in _groups().items()}
    head: Schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "a recipe of bert_jax"}
    if recipe is not None:
        kind = "finetuning" if key_names.is_finetuning(recipe) else "pretraining"
        values = json.loads(json.dumps(trees.plain(recipe)))
        return {**head, **_with_values(definitions[kind], values, definitions), "$defs": definitions}
    finetunes = {"anyOf": [{"required": ["task"]}, {"required": ["tasks"]}]}
    kinds = {"then": {"$ref": "#/$defs/finetuning"}, "else": {"$ref": "#/$defs/pretraining"}}
    return {**head, "if": finetunes, **kinds, "$defs": definitions}


def _groups() -> dict[str, _Group]:
    """Return the definitions of the schema by name."""
    from bert_jax.corpora.prepare import CorpusConfig, PartConfig
    from bert_jax.examples.load import DataConfig
    from bert_jax.objectives import base
    from bert_jax.recipes.finetuning_settings import FinetuningSettings
    from bert_jax.recipes.pretraining_settings import PretrainingSettings
    from bert_jax.recipes.task_settings import TaskSettings
    from bert_jax.rows.masking import MaskingConfig
    from bert_jax.rows.phases import Phase
    from bert_jax.runs.evaluations import base as evaluations

    arrangement = _Choice("objective.arrangement", "Arrangement", "arrangement_options")
    return {
        "pretraining": _Group("", PretrainingSettings),
        "finetuning": _Group("", FinetuningSettings),
        "model": _Group("model", None, (_Choice("model.encoder", "Config", default="bert"),)),
        "model_of_phase": _Group("model", None, (_Choice("model.encoder", "Config"),)),
        "phase": _Group("phases.*", Phase),
        "objective": _Group("objective", base.Config, (_Choice("objective.name", "Config"), arrangement)),
        "masking": _Group(
            "objective.masking", MaskingConfig, (_Choice("objective.masking.strategy", "Config", "options"),)
        ),
        "optimizer": _Group("optimizer", None, (_Choice("optimizer.name", "Optimizer", default="adamw"),)),
        "schedule": _Group("schedule", None, (_Choice("schedule.name", "Schedule", default="linear_from_zero"),)),
        "evaluation": _Group(
            "training.evaluations.*", evaluations.Config, (_Choice("training.evaluations.*.name", "Config"),)
        ),
        "corpus": _Group("corpus", CorpusConfig, (_Choice("corpus.source", "Source", "options", "docstrings"),)),
        "part": _Group("corpus.parts.*", PartConfig, (_Choice("corpus.source", "Source", "options", "text_files"),)),
        "column": _Group("corpus.columns.*", None, (_Choice("corpus.columns.*.annotator", "Annotator"),)),
        "task": _Group("task", None, (_Choice("task.name", "Config"),)),
        "data": _Group("data", DataConfig, (_Choice("data.format", "Reader", "options"),)),
        "one_of_tasks": _Group("tasks.*", TaskSettings),
    }


# Path of a group of keys -> its definition. At paths that end in .* the keys are names that a recipe chooses.
_REFERENCES = {
    **{name: name for name in ("model", "objective", "optimizer", "schedule", "corpus", "task", "data")},
    **{"phases.*": "phase", "tasks.*": "one_of_tasks", "tasks.*.task": "task", "tasks.*.data": "data"},
    **{"phases.*.masking": "masking", "phases.*.objective": "objective", "phases.*.schedule": "schedule"},
    **{"phases.*.model": "model_of_phase", "objective.masking": "masking", "objective.members.*": "objective"},
    **{"training.eval_masking": "masking", "training.evaluations.*": "evaluation"},
    **{"corpus.parts.*": "part", "corpus.columns.*": "column"},
}


def _definition(group: _Group) -> Schema:
    found: Schema = {"type": "object", "properties": {}, "unevaluatedProperties": False}
    if group.common:
        found |= _fields(group.common, group.path)
    if group.path == "phases.*":  # one of three keys says how long a phase is
        del found["required"]
    if group.path == "objective":
        found["properties"] |= {
            "members": {**_at("objective.members", dict), "description": LINES["objective.members"]},
            "share": {
                "type": "number",
                "default": 1.0,
                "description": "of one of several members: its share of the batches",
            },
        }
    rules = [rule for choice in group.choices for rule in _rules(choice, group.common)]
    for choice in group.choices:
        name = choice.key.rpartition(".")[2]
        own = {"default": choice.default} if choice.default else {}
        folder = f"a file of bert_jax/{catalogue.KEYS[choice.key].package.replace('.', '/')}"
        known = found["properties"].get(name, {"description": LINES.get(choice.key, folder)})
        found["properties"][name] = {**known, **_part(choice.key), **own}
    return {**found, "allOf": rules} if rules else found


def _rules(choice: _Choice, common: type | None) -> Iterator[Schema]:
    """Yield, for each part, what keys it has, as "if ... then ..."."""
    category, every = catalogue.KEYS[choice.key], dict[str, Any]()
    key = choice.key.rpartition(".")[2]
    known = {field.name for field in dataclasses.fields(common)} if common and not choice.under else set()  # type: ignore[arg-type]
    for name in catalogue.parts(category.package, category.having):
        module = catalogue.find(category.package, name, category.having)
        keys = _fields(getattr(module, choice.fields), choice.key.rpartition(".")[0])
        keys["properties"] = {key: value for key, value in keys["properties"].items() if key not in known}
        every |= keys["properties"]
        if choice.key == "model.encoder":
            keys["properties"] |= _of_model({"enum": list(module.SIZES)})
            every |= _of_model({"type": "string"})
        needed = {} if name == choice.default else {"required": [key]}
        yield {"if": {"properties": {key: {"const": name}}, **needed}, "then": _placed(keys, choice.under)}
    if not choice.default:
        yield {"if": {"not": {"required": [key]}}, "then": _placed({"properties": every}, choice.under)}
    if not choice.under:
        own = {"properties": {key: {"type": "string", "pattern": _OWN}}, "required": [key]}
        yield {"if": own, "then": {"additionalProperties": True}}


def _placed(keys: Schema, under: str) -> Schema:
    return {"properties": {under: {**keys, "additionalProperties": False}}} if under else keys


def _of_model(size: Schema) -> Schema:
    """Return the keys of a model that no ``Config`` of an encoder has."""
    kernel = _part("model.attention_kernel")
    keys: dict[str, Schema] = {"size": size, "vocab_size": {"type": "integer"}, "attention_kernel": kernel}
    return {key: {**value, "description": LINES[f"model.{key}"]} for key, value in keys.items()}


def _fields(cls: type, path: str, given: Any = None) -> Schema:
    """Return the properties and the required properties for the fields of a dataclass.

    ``given`` has their defaults, if any.
    """
    hints, lines, properties, required = typing.get_type_hints(cls), field_lines.lines(cls), {}, []
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        if not field.init or any((one.__name__, field.name) in NOT_KEYS for one in cls.__mro__):
            continue
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        default = getattr(given, field.name, default)
        found = _at(f"{path}.{field.name}".lstrip("."), hints[field.name], default)
        if field.name in lines:
            found["description"] = lines[field.name].replace("``", "`")
        if default is dataclasses.MISSING:
            required.append(field.name)
        elif not dataclasses.is_dataclass(default) and default != {}:
            found["default"] = default
        properties[field.name] = found
    for group, default in getattr(cls, "part_defaults", {}).items():
        properties[group]["default"] = default
    return {"properties": properties, "required": required}


def _at(path: str, hint: Any, default: Any = None) -> Schema:
    """Return the schema of the values of a type at a path."""
    if path in _REFERENCES:
        reference = {"$ref": f"#/$defs/{_REFERENCES[path]}"}
        return {"anyOf": [reference, {"type": "null"}]} if default is None else reference
    if f"{path}.*" in _REFERENCES:
        return {"type": "object", "additionalProperties": {"$ref": f"#/$defs/{_REFERENCES[f'{path}.*']}"}}
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_at(path, one, default) for one in arguments]}
    if path in catalogue.KEYS:
        return _part(path)
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin is tuple:
        every = {"type": "array", "items": _at(f"{path}.*", arguments[0])}
        return {"anyOf": [every, every["items"]]} if str in (arguments[0], *typing.get_args(arguments[0])) else every
    if origin in (dict, collections.abc.Mapping):
        return {"type": "object", "additionalProperties": _at(f"{path}.*", arguments[1])}
    if dataclasses.is_dataclass(hint):
        return {"type": "object", **_fields(hint, path, default), "additionalProperties": False}  # type: ignore[arg-type]
    return {"type": _TYPES[hint]} if hint in _TYPES else {}


_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", types.NoneType: "null"}


def _part(key: str) -> Schema:
    """Return the schema of a key that names a part: a name of this package, or a file of the user's."""
    category = catalogue.KEYS[key]
    names = list(catalogue.parts(category.package, category.having))
    if key == "model.attention_kernel":
        from bert_jax.models.kernels import choice

        names = list(choice.names())
    return {"anyOf": [{"enum": names}, {"type": "string", "pattern": _OWN}]}


def _with_values(found: Schema, values: Mapping[str, Any], definitions: Mapping[str, Schema]) -> Schema:
    """Return a schema in which the values of a recipe are the defaults of their keys."""
    found = found["anyOf"][0] if "anyOf" in found else found  # the group of keys, and not null
    if "$ref" in found:
        found = {**definitions[found["$ref"].rpartition("/")[2]], **configuration.without(found, "$ref")}
    properties, named = dict(found.get("properties", {})), found.get("additionalProperties")
    for key, value in values.items():
        one = properties.get(key, named if isinstance(named, dict) else None)
        if one is not None:
            is_group = isinstance(value, Mapping)
            properties[key] = _with_values(one, value, definitions) if is_group else {**one, "default": value}
    rules = [
        {**rule, "then": _with_values(rule["then"], values, definitions)} if _holds(rule["if"], values) else rule
        for rule in found.get("allOf", ())
    ]
    return {**found, "properties": properties, **({"allOf": rules} if rules else {})}


def _holds(condition: Schema, values: Mapping[str, Any]) -> bool:
    """Return whether the ``if`` of a rule of ``_rules`` holds for a group of keys."""
    if "not" in condition:
        return not any(key in values for key in condition["not"]["required"])
    [(key, one)] = condition["properties"].items()
    return key in values and values[key] == one.get("const") or key not in values and "required" not in condition
