"""Moves tensors between our parameter tree and the names of transformers, and reports what happened to each tensor."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

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
            lines += [f"  {kind}: {name}" for name in _once_per_layer(found)]
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


def _once_per_layer(found: Iterable[str]) -> list[str]:
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


def _shapes_of(config: ModelConfig, head: Head) -> dict[str, Any]:
    """Return a tree with the shape of every array that a file with this ``head`` can hold."""

    def last(outputs: int) -> dict[str, Any]:
        return {"dense": {"kernel": (config.hidden_size, outputs), "bias": (outputs,)}}

    tree = jax.tree.map(lambda x: x.shape, dict(_pretraining_shapes(config)))
    return tree | {"classifier": last(head.num_outputs), "qa_outputs": last(2), "sop_head": last(2)}  # type: ignore[no-any-return]


class _Read(NamedTuple):
    """The parameters that were read from a file, and what happened to each tensor (the fields of ``Report``)."""

    params: dict[str, Any]
    moved: tuple[tuple[names.Entry, tuple[int, ...]], ...]
    missing: tuple[str, ...]


def read_params(
    tensors: Mapping[str, np.ndarray], config: ModelConfig, head: Head, where: str, pad_id: int = 0
) -> _Read:
    """Return the tensors of a file as our parameter tree.

    The tree has the parts of ``head``, except for heads of which the file has no tensor, and each other pretrained part
    if the file has all tensors of that part.

    Args:
      tensors: the tensors under their current names.
      where: the folder's name for error messages.
      pad_id: the id of the padding token, on which RoBERTa's positions depend.

    Raises:
      UserError: a tensor has another shape than the config says, holds no floats or has no place in the model; or a
        tensor of the encoder or of a head of which the file has others is missing.
    """
    shapes = _shapes_of(config, head)
    entries = list(head.family.entries(config.num_layers, head.architecture, pad_id))
    complete = {part for part in PRETRAINED_PARTS if _whole(part, entries, tensors)}
    params: dict[str, Any] = {}
    moved, problems, left = [], [], dict(tensors)
    missing: dict[str, list[str]] = {}  # part -> names of tensors
    for entry in (e for e in entries if e.part in {*head.parts, *complete}):
        array = left.pop(entry.theirs, None)
        if array is None:
            missing.setdefault(entry.part, []).append(entry.theirs)
            continue
        shape = leaf(shapes, entry.ours)
        theirs = names.to_theirs(np.broadcast_to(np.float32(0), shape), entry).shape
        if array.shape != theirs:
            problems.append(f"{entry.theirs} is {list(array.shape)}, config.json says {list(theirs)}")
        elif array.dtype != np.float32:
            problems.append(f"{entry.theirs} holds {array.dtype} numbers; a quantized model cannot be read")
        else:
            moved.append((entry, array.shape))
            put(params, entry.ours, names.to_ours(array, entry, shape))
    for part, absent in missing.items():
        if part == "encoder" or part in params:
            problems.append(f"{len(absent)} tensors of the {part} are missing, such as {absent[0]}")
    if strange := [name for name in left if name not in head.family.redundant(head.architecture)]:
        more = f" and {len(strange) - 5} more" if len(strange) > 5 else ""
        problems.append(
            f"{len(strange)} tensors have no place in the {head.architecture} of config.json: "
            f"{', '.join(strange[:5])}{more} (transformers leaves them out when it loads and saves a model)"
        )
    if problems:
        raise UserError(f"{where} does not fit together: {'; '.join(problems[:5])}; copy the whole folder again")
    return _Read(params, tuple(moved), tuple(name for absent in missing.values() for name in absent))


def _whole(part: str, entries: Collection[names.Entry], tensors: Collection[str]) -> bool:
    own = [entry.theirs in tensors for entry in entries if entry.part == part]
    return bool(own) and all(own)


def check_class(params: Any, config: ModelConfig, name: str = "the model") -> None:
    """Raise ``UserError`` if transformers has no class for such a model: it is causal, or has a BiLSTM."""
    if config.causal or "bilstm" in params:
        found = "reads from left to right" if config.causal else "has a BiLSTM"
        raise UserError(f"{name} {found} and cannot be exported: transformers has no class for it")


def written_tensors(
    params: Any, config: ModelConfig, head: Head, pad_id: int = 0
) -> tuple[dict[str, np.ndarray], Report]:
    """Return the tensors of a model under their names in the class of ``head``, and a report.

    Args:
      pad_id: the id of the padding token, on which RoBERTa's positions depend.

    Raises:
      UserError: the model lacks a part that the class needs; the message names the part and another class.
    """
    bare, family = head.ending == "Model", head.family
    absent = [part for part in head.parts if part not in params and not (bare and part == "pooler")]
    if absent:
        raise UserError(
            f"the model has no {', '.join(absent)}, which {head.architecture} needs (it has: {', '.join(params)}); "
            f"choose another class with --as, such as --as={family.name}Model"
        )
    tensors, moved, missing = {}, [], []
    for entry in family.entries(config.num_layers, head.architecture, pad_id):
        if entry.part not in head.parts:
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
