"""Moves tensors between our parameter tree and the names of transformers, and reports which were read or left out."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from bert_jax.errors import UserError, few
from bert_jax.interchange import names
from bert_jax.interchange.architectures import HeadClass
from bert_jax.interchange.family import family_of
from bert_jax.interchange.tensors import quantized
from bert_jax.models.config import ModelConfig


@dataclasses.dataclass(frozen=True)
class Report:
    """The report of an import or export. ``str(report)`` is ``report.line`` and a line for each name that it counts."""

    title: str
    tensors: tuple[str, ...]  # names in the file of the tensors that were read or written
    missing: tuple[str, ...] = ()  # names of tensors that the class needs but the model lacks
    unused: tuple[str, ...] = ()  # names of parts that were left out
    notes: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        counts = [f"{len(names)} {what}" for what, names in self._rest() if names]
        return f"{self.title}: {'; '.join([f'{len(self.tensors)} tensors', *self.notes, *counts])}"

    def __str__(self) -> str:
        return "\n".join([self.line, *(f"  {what}: {name}" for what, names in self._rest() for name in names)])

    def _rest(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        return ("missing", self.missing), ("left out", self.unused)


def leaf(tree: Any, path: str) -> Any:
    """Return the value at a path such as ``encoder/layer_0/...``; None if the tree has no such path."""
    for name in path.split("/"):
        if not isinstance(tree, Mapping) or name not in tree:
            return None
        tree = tree[name]
    return tree


def put(tree: dict[str, Any], path: str, value: Any) -> None:
    """Set the value at a path such as ``encoder/layer_0/...``; levels above it are created if missing."""
    *folders, last = path.split("/")
    for name in folders:
        tree = tree.setdefault(name, {})
    tree[last] = value


def read_params(
    tensors: Mapping[str, np.ndarray], config: ModelConfig, head: HeadClass, where: str, pad_id: int = 0
) -> tuple[dict[str, Any], Report]:
    """Return the tensors of a file as our parameter tree, and a report without a title.

    The tree has the parts of ``head``, without heads for which the file has no tensor. It also has each other
    pretrained part for which the file has all tensors.

    Args:
      tensors: the tensors under their current names.
      where: the folder's name for error messages.
      pad_id: the id of the padding token, on which RoBERTa's positions depend.

    Raises:
      UserError: a tensor has another shape than the config says, holds no floats or has no place in the model; or the
        file lacks a tensor of the encoder, or some of the tensors of a head.
    """
    family = family_of(config.encoder)
    shapes = family.shapes(config, head.num_outputs)
    entries = list(family.entries(config.num_layers, head.architecture, pad_id))
    complete = {part for part in family.pretrained if _whole(part, entries, tensors)}
    params: dict[str, Any] = {}
    names_read, problems, left = [], [], dict(tensors)
    missing: dict[str, list[str]] = {}  # part -> names of tensors
    for entry in (e for e in entries if e.part in {*head.parts, *complete}):
        shape = leaf(shapes, entry.ours)
        if shape is None and entry.optional:
            continue
        array = left.pop(entry.theirs, None)
        if array is None:
            missing.setdefault(entry.part, []).append(entry.theirs)
            continue
        theirs = names.to_theirs(np.broadcast_to(np.float32(0), shape), entry).shape
        if array.shape != theirs:
            problems.append(f"{entry.theirs} is {list(array.shape)}, config.json says {list(theirs)}")
        elif array.dtype != np.float32:
            raise quantized(where, entry.theirs, array.dtype)
        else:
            names_read.append(entry.theirs)
            put(params, entry.ours, names.to_ours(array, entry, shape))
    for part, absent in missing.items():
        if part == "encoder" or part in params:
            problems.append(f"{len(absent)} tensors of the {part} are missing, such as {absent[0]}")
    if strange := [name for name in left if name not in family.redundant(head.architecture)]:
        problems.append(
            f"{len(strange)} tensors have no place in the {head.architecture} of config.json: "
            f"{few(strange)} (transformers leaves them out when it loads and saves a model)"
        )
    if problems:
        raise UserError(f"{where} does not fit together: {'; '.join(problems[:5])}; copy the whole folder again")
    return params, Report("", tuple(names_read), tuple(name for absent in missing.values() for name in absent))


def _whole(part: str, entries: Collection[names.Entry], tensors: Collection[str]) -> bool:
    own = [entry.theirs in tensors for entry in entries if entry.part == part]
    return bool(own) and all(own)


def unlike(params: Any, config: ModelConfig, head: HeadClass) -> str:
    """Return why the transformers class of ``head`` computes something else than the model does; "" if it does not.

    In a model that reads from left to right, our pooler reads the last token of a text, because only the last token has
    seen the whole text. The pooler of transformers reads the first token.
    """
    if "bilstm" in params:
        return "transformers has no class with a BiLSTM"
    family = family_of(config.encoder)
    if config.causal and not family.causal:
        return f"transformers has no class of the {family.title} family that reads from left to right"
    if config.causal and "pooler" in head.parts and "pooler" in params:
        return f"in a left-to-right model we pool the last token, and the pooler of {head.architecture} reads the first"
    return ""


def tensors_of(
    params: Any, config: ModelConfig, head: HeadClass, pad_id: int = 0
) -> tuple[dict[str, np.ndarray], Report]:
    """Return the tensors of a model under their names in the class of ``head``, and a report without a title.

    Args:
      pad_id: the id of the padding token, on which RoBERTa's positions depend.

    Raises:
      UserError: the model lacks a part that the class needs; the message names the part and another class.
    """
    bare, family = head.ending == "Model", family_of(config.encoder)
    absent = [part for part in head.parts if part not in params and not (bare and part == "pooler")]
    if absent:
        raise UserError(
            f"the model has no {', '.join(absent)}, which {head.architecture} needs (it has: {', '.join(params)}); "
            f"choose another class with --as, such as --as={family.name}Model"
        )
    tensors, missing, merged = {}, [], family.merged(params, config)
    for entry in family.entries(config.num_layers, head.architecture, pad_id):
        if entry.part not in head.parts:
            continue
        name = entry.theirs.removeprefix(family.prefix) if bare else entry.theirs
        array = leaf(merged, entry.ours)
        if array is None:
            missing += [] if entry.optional else [name]
            continue
        tensors[name] = names.to_theirs(np.asarray(array, np.float32), entry)
    unused = tuple(part for part in params if part not in head.parts)
    return tensors, Report("", tuple(tensors), tuple(missing), unused)
