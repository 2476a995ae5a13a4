"""Moves tensors between our parameter tree and the names of transformers, and reports what happened to each tensor."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import jax
import numpy as np

from bert_jax.errors import UserError
from bert_jax.interchange import names
from bert_jax.interchange.architectures import PRETRAINED_PARTS, Head
from bert_jax.models.config import ModelConfig
from bert_jax.models.model import fresh_params


@dataclasses.dataclass(frozen=True)
class Report:
    """The report of an import or export. ``str(report)`` is a table; ``report.line`` is a summary."""

    title: str
    moved: tuple[tuple[names.Entry, tuple[int, ...]], ...]  # (entry, shape in the file) of each tensor
    missing: tuple[str, ...] = ()  # names of tensors that the class needs but the model lacks
    unused: tuple[str, ...] = ()  # names of tensors or parts that were left out
    notes: tuple[str, ...] = ()
    arrow: str = "<-"  # "<-" for an import, "->" for an export

    @property
    def line(self) -> str:
        """The report in one line, with counts instead of names."""
        counts = [f"{len(self.moved)} tensors", *(f"{note}" for note in self.notes)]
        counts += [f"{len(found)} {kind}" for kind, found in self._rest() if found]
        return f"{self.title}: {'; '.join(counts)}"

    def __str__(self) -> str:
        rows = [(ours, theirs, shape) for ours, theirs, shape in self._folded()]
        widths = [max((len(row[i]) for row in rows), default=0) for i in range(2)]
        lines = [self.title]
        lines += [f"  {o:<{widths[0]}}  {self.arrow}  {t:<{widths[1]}}  {shape}" for o, t, shape in rows]
        for kind, found in self._rest():
            lines += [f"  {kind}: {name}" for name in folded(found)]
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])

    def _rest(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        return ("missing", self.missing), ("left out", self.unused)

    def _folded(self) -> Iterable[tuple[str, str, str]]:
        """Yield the rows of the table (ours, theirs, shape). Tensors that differ only in the layer share a row."""
        groups: dict[tuple[str, str, tuple[int, ...]], int] = {}
        for entry, shape in self.moved:
            key = (_template(entry.ours), _template(entry.theirs), shape)
            groups[key] = groups.get(key, 0) + 1
        for (ours, theirs, shape), count in groups.items():
            times = f" x {count} layers" if "*" in theirs else ""
            yield ours, theirs, f"{list(shape)}{times}"


def _template(name: str) -> str:
    return re.sub(r"(layer[_./])\d+", r"\1*", name)


def folded(found: Iterable[str]) -> list[str]:
    """Return the names; names that differ only in the layer share a line: ``encoder.layer.*.output.dense.bias
    (12)``."""
    counts: dict[str, int] = {}
    for name in found:
        counts[_template(name)] = counts.get(_template(name), 0) + 1
    return [f"{name} ({count})" if count > 1 else name for name, count in counts.items()]


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


@functools.lru_cache(maxsize=16)
def _pretraining_shapes(config: ModelConfig) -> Any:
    return jax.eval_shape(lambda: fresh_params(config))


def shapes_of(config: ModelConfig, head: Head) -> dict[str, Any]:
    """Return a tree with the shape of every array that a file with this ``head`` can hold."""

    def last(outputs: int) -> dict[str, Any]:
        return {"dense": {"kernel": (config.hidden_size, outputs), "bias": (outputs,)}}

    tree = jax.tree.map(lambda x: x.shape, dict(_pretraining_shapes(config)))
    return tree | {"classifier": last(head.num_outputs), "qa_outputs": last(2), "sop_head": last(2)}  # type: ignore[no-any-return]


@dataclasses.dataclass(frozen=True)
class Read:
    """The parameters that were read from a file, and what happened to each tensor (the fields of ``Report``)."""

    params: dict[str, Any]
    moved: tuple[tuple[names.Entry, tuple[int, ...]], ...]
    missing: tuple[str, ...]
    unused: tuple[str, ...]


def read_params(
    tensors: Mapping[str, np.ndarray], config: ModelConfig, head: Head, where: str, pad_id: int = 0
) -> Read:
    """Return the tensors of a file as our parameter tree.

    The tree has the parts of ``head``, and each other pretrained part if the file has all tensors of that part.

    Args:
      tensors: the tensors under their current names.
      where: the folder's name for error messages.
      pad_id: the id of the padding token, on which RoBERTa's positions depend.

    Raises:
      UserError: a shape does not fit the config, or a tensor of the encoder is missing or has no place in ours.
    """
    shapes = shapes_of(config, head)
    entries = list(head.family.entries(config.num_layers, head.architecture, pad_id))
    wanted = _readable(tensors, entries, head)
    params: dict[str, Any] = {}
    moved, missing, problems, left = [], [], [], dict(tensors)
    for entry in (e for e in entries if names.part(e) in wanted):
        array = left.pop(entry.theirs, None)
        if array is None:
            missing.append(entry.theirs)
            continue
        shape = leaf(shapes, entry.ours)
        theirs = names.to_theirs(np.broadcast_to(np.float32(0), shape), entry).shape
        if array.shape != theirs:
            problems.append(f"{entry.theirs} is {list(array.shape)}, config.json says {list(theirs)}")
        else:
            moved.append((entry, array.shape))
            put(params, entry.ours, names.to_ours(array, entry, shape))
    essential = [e.theirs for e in entries if names.part(e) == "encoder" and e.theirs in missing]
    if essential:
        problems.append(f"{len(essential)} tensors of the encoder are missing, such as {essential[0]}")
    own = (f"{head.family.prefix}embeddings.", f"{head.family.prefix}encoder.")
    if strange := [name for name in left if name.replace("/", ".").startswith(own)]:
        problems.append(
            f"{len(strange)} tensors of the encoder have no place in the model of config.json, such as {strange[0]}"
        )
    if problems:
        raise UserError(f"{where} does not fit together: {'; '.join(problems[:5])}; copy the whole folder again")
    broken = {names.part(e) for e in entries if e.theirs in missing}  # incomplete heads are left out
    unused = [*left, *(e.theirs for e, _ in moved if names.part(e) in broken)]
    params = {part: tree for part, tree in params.items() if part not in broken}
    kept = tuple((e, shape) for e, shape in moved if names.part(e) not in broken)
    return Read(params, kept, tuple(missing), tuple(sorted(unused)))


def _readable(tensors: Collection[str], entries: Collection[names.Entry], head: Head) -> set[str]:
    def whole(part: str) -> bool:
        own = [e.theirs in tensors for e in entries if names.part(e) == part]
        return bool(own) and all(own)

    return {*head.parts, *(part for part in PRETRAINED_PARTS if whole(part))}


def written_tensors(
    params: Any, config: ModelConfig, head: Head, pad_id: int = 0
) -> tuple[dict[str, np.ndarray], Report]:
    """Return the tensors of a model under their names in the class of ``head``, and a report.

    Args:
      pad_id: the id of the padding token, on which RoBERTa's positions depend.

    Raises:
      UserError: the model lacks a part that the class needs (the message names the part and another class), or
        transformers has no class for the model.
    """
    if config.causal or "bilstm" in params:
        found = "a BiLSTM on its encoder" if "bilstm" in params else "causal attention"
        raise UserError(f"a model with {found} cannot be exported: transformers has no class for it")
    bare, family = head.ending == "Model", head.family
    absent = [part for part in head.parts if part not in params and not (bare and part == "pooler")]
    if absent:
        raise UserError(
            f"the model has no {', '.join(absent)}, which {head.architecture} needs (it has: {', '.join(params)}); "
            f"choose another class with --as, such as --as={family.name}Model"
        )
    tensors, moved, missing = {}, [], []
    for entry in family.entries(config.num_layers, head.architecture, pad_id):
        if names.part(entry) not in head.parts:
            continue
        name = entry.theirs.removeprefix(family.prefix) if bare else entry.theirs
        array = leaf(params, entry.ours)
        if array is None:
            missing.append(name)
            continue
        tensors[name] = names.to_theirs(np.asarray(array, np.float32), entry)
        moved.append((entry._replace(theirs=name), tensors[name].shape))
    unused = tuple(part for part in params if part not in head.parts)
    return tensors, Report("", tuple(moved), tuple(missing), unused, arrow="->")
