"""The keys of ``config.teacher``, which layers of the teacher teach the student's, and a start from its layers."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any, Literal

import jax
import numpy as np

from bert_jax.configuration import LossWeight, check_fields
from bert_jax.errors import UserError
from bert_jax.models.config import ModelConfig
from bert_jax.models.model import Model, shapes_of
from bert_jax.models.transformer import UNROLLED

WHERE = "config.teacher"
# Fields of a model's config, besides rates of dropout, that do not change its outputs.
_UNSAID = ("dtype", "initializer_range", "layers", "remat", "attention_kernel")


@dataclasses.dataclass(frozen=True)
class SoftConfig:
    """The keys of ``config.teacher.soft``: the teacher's distributions (or numbers) take the place of labels.

    The loss is T^2 KL(teacher || student) at temperature T, of the targets of a term of the objective or task (Hinton
    et al. 2015, section 2); of a regression, the squared difference.
    """

    weight: LossWeight = 1.0  # times the weight of the term itself; 0 leaves soft targets out
    temperature: float = 1.0  # by which the logits of both models are divided
    terms: tuple[str, ...] = ()  # the terms that are taught; (): all

    def __post_init__(self) -> None:
        check_fields(
            self, f"{WHERE}.soft", "0.001 to 1,000 is allowed", "temperature", sound=lambda value: 1e-3 <= value <= 1e3
        )


@dataclasses.dataclass(frozen=True)
class HiddenConfig:
    """The keys of ``config.teacher.hidden``: the hidden states of mapped layers are to be alike, at real tokens.

    With "mse", the loss is the mean squared difference of their entries (Jiao et al. 2020, equations 8 and 9), with
    "cosine" 1 - their cosine (Sanh et al. 2019, section 3), summed over the mapped layers.
    """

    weight: LossWeight = 0.0  # 0 leaves hidden states out
    loss: Literal["mse", "cosine"] = "mse"  # the mean squared difference, or 1 - the cosine


@dataclasses.dataclass(frozen=True)
class AttentionConfig:
    """The keys of ``config.teacher.attention``: the scores of mapped layers, before the softmax, are to be alike.

    The loss is the mean squared difference of the scores of the keys that a real token sees, over all heads (Jiao et
    al. 2020, equation 7), summed over the mapped layers.
    """

    weight: LossWeight = 0.0  # 0 leaves attention out


@dataclasses.dataclass(frozen=True)
class TeacherConfig:
    """The keys of ``config.teacher``.

    Layers: with "uniform", of N and n layers, m N / n teaches m (Jiao et al. 2020, section 3.1), and the embeddings
    teach the embeddings; with "every_second", 2 m teaches m, likewise; with "last", the last teaches the last
    alone; a tuple has, for each layer of the student, the number of its teacher.
    """

    init: str  # a Hugging Face directory, the workdir of a run, or WORKDIR@step
    task: str | None = None  # for a teacher of several tasks; if None, each task is taught by the task of the same name
    labels: LossWeight = 1.0  # the weights of the terms of the objective or the task are multiplied by this number
    soft: SoftConfig = SoftConfig()
    hidden: HiddenConfig = HiddenConfig()
    attention: AttentionConfig = AttentionConfig()
    # the layers of the teacher that teach layers of the student: uniform, every_second, last, or a tuple, from 1
    layers: Any = "uniform"
    # the layers of the teacher with which the student begins: uniform, every_second or a tuple; None: with none
    start: Any = None
    cached: bool = False  # for fine-tuning: the teacher's outputs for all rows are computed once, before training

    def __post_init__(self) -> None:
        if not (self.soft.weight or self.hidden.weight or self.attention.weight):
            raise UserError(
                f"{WHERE} teaches nothing: the weights of soft, hidden and attention are 0; set one of them, or leave "
                f"{WHERE} out"
            )
        if self.cached and (self.hidden.weight or self.attention.weight):
            raise UserError(
                f"{WHERE}.cached keeps soft targets alone; set the weights of hidden and attention to 0, or cached to "
                "False"
            )
        self._check_read()

    def _check_read(self) -> None:
        """Raise ``UserError`` if a key has another value than its default, and nothing reads that key."""
        soft, hidden, attention = self.soft.weight, self.hidden.weight, self.attention.weight
        keys = (
            ("layers", self.layers, TeacherConfig.layers, "hidden.weight or attention.weight", hidden or attention),
            ("soft.temperature", self.soft.temperature, SoftConfig.temperature, "soft.weight", soft),
            ("hidden.loss", self.hidden.loss, HiddenConfig.loss, "hidden.weight", hidden),
        )
        unread = [
            f"{WHERE}.{key} is {value!r}, which nothing reads; set {weight} above 0, or {key} to {default!r}"
            for key, value, default, weight, is_read in keys
            if value != default and not is_read
        ]
        if unread:
            raise UserError("; ".join(unread))

    @property
    def without_soft(self) -> str:
        """Words that say how to learn without soft targets."""
        changes = {
            "soft.weight to 0": True,
            f"soft.temperature to {SoftConfig.temperature}": self.soft.temperature != SoftConfig.temperature,
            "cached to False": self.cached,
            "hidden.weight above 0": not (self.hidden.weight or self.attention.weight),
        }
        needed = [f"{WHERE}.{change}" for change, is_needed in changes.items() if is_needed]
        return f"set {' and '.join(needed)}"


@dataclasses.dataclass(frozen=True)
class Teacher:
    """A trained model (``params``, ``config``, ``source``) and the keys that say what a student learns from it.

    Attributes:
      whole: all parameters of the model if ``trained`` is one task of several; several students keep them once.
    """

    config: TeacherConfig
    trained: Any
    whole: Any = None


def pairs_of(layers: Any, student: int, teacher: int, key: str = f"{WHERE}.layers") -> tuple[tuple[int, int], ...]:
    """Return which hidden states of a teacher teach which of a student, as (student's, teacher's); 0: the embeddings.

    Args:
      layers: see ``TeacherConfig``.
      student, teacher: the numbers of layers.
      key: the key of ``layers``, for messages.

    Raises:
      UserError: ``layers`` do not fit the two models.
    """
    have = f"the teacher has {teacher} layers, the student {student}"
    if not (student and teacher):
        raise UserError(f"{key}: {have}; both need some")
    if layers == "last":
        return ((student, teacher),)
    if layers == "uniform":
        if teacher % student:
            raise UserError(
                f"{key} is 'uniform', and {have}, which do not divide; give a tuple of {student} layers of the"
                " teacher, from 1, or 'last'"
            )
        chosen: Any = tuple(teacher // student * m for m in range(1, student + 1))
    elif layers == "every_second":
        if teacher // 2 != student:
            raise UserError(f"{key} is 'every_second', and {have}; the student needs {teacher // 2}")
        chosen = tuple(range(2, teacher + 1, 2))
    else:
        chosen = layers
    numbers = isinstance(chosen, tuple | list) and all(type(one) is int for one in chosen)
    if not numbers or len(chosen) != student or not all(1 <= one <= teacher for one in chosen):
        raise UserError(
            f"{key} is {layers!r}, and {have}; 'uniform', 'every_second', 'last' or a tuple of {student} "
            f"numbers from 1 to {teacher} is needed"
        )
    return ((0, 0), *enumerate(chosen, start=1))


def first_params(params: Mapping[str, Any], layers: Any, student: ModelConfig, teacher: ModelConfig) -> dict[str, Any]:
    """Return the parameters of a teacher, unrolled, of whose layers only ``layers`` are kept, for a ``student``.

    Raises ``UserError`` if they do not fit the student.
    """
    encoder = {name: tree for name, tree in params["encoder"].items() if not name.startswith(UNROLLED)}
    key, pairs = f"{WHERE}.start", pairs_of(layers, student.num_layers, teacher.num_layers, f"{WHERE}.start")
    if len(pairs) != student.num_layers + 1:
        raise UserError(f"{key} is {layers!r}, and each layer of the student needs one to begin with")
    if len(encoder) < len(params["encoder"]):
        encoder |= {f"{UNROLLED}{m - 1}": params["encoder"][f"{UNROLLED}{n - 1}"] for m, n in pairs[1:]}
    plain = dataclasses.replace(student.plain(), vocab_size=teacher.vocab_size)
    wanted = shapes_of(Model(plain))[1]["encoder"]
    held = {jax.tree_util.keystr(path): x.shape for path, x in jax.tree_util.tree_leaves_with_path(encoder)}
    for path, leaf in jax.tree_util.tree_leaves_with_path(wanted):
        name = jax.tree_util.keystr(path)
        if held.get(name) == leaf.shape:
            continue
        if sizes := _unlike_sizes(student, teacher):
            ours, its = (", ".join(f"{size} {pair[i]}" for size, pair in sizes.items()) for i in (0, 1))
            flags = " ".join(f"--config.model.{size}={pair[1]}" for size, pair in sizes.items())
            raise UserError(
                f"{key} is {layers!r}, and the student has {ours}, the teacher {its}; leave {key} out, or give the "
                f"student the sizes of the teacher: {flags}"
            )
        raise UserError(
            f"{key} is {layers!r}, and the student's encoder{name} is {leaf.shape}, the teacher's "
            f"{held.get(name, 'not there')}; leave {key} out, or take a teacher of the same encoder"
        )
    return {**params, "encoder": encoder}


def _unlike_sizes(student: ModelConfig, teacher: ModelConfig) -> dict[str, tuple[int, int]]:
    """Return the sizes of layers and embeddings in which two models differ, by name: (student's, teacher's)."""
    every = {field.name: getattr(student, field.name) for field in dataclasses.fields(student)}
    sizes = {name: (size, getattr(teacher, name, None)) for name, size in every.items() if type(size) is int}
    differ = {name: (a, b) for name, (a, b) in sizes.items() if b not in (a, None)}
    return {name: pair for name, pair in differ.items() if name not in ("num_layers", "vocab_size")}


def digest(tree: Any) -> str:
    """Return the first 16 hex digits of a sha256 of names, shapes, dtypes and values of all arrays in ``tree``."""
    found = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        found.update(f"{jax.tree_util.keystr(path)} {leaf.shape} {leaf.dtype}\n".encode())
        found.update(np.ascontiguousarray(leaf).reshape(-1).view(np.uint8).data)
    return found.hexdigest()[:16]


def content(trained: Any, params: str = "") -> str:
    """Return the first 16 hex digits of a sha256 of the parameters, architecture and labels of a trained model.

    It is the same for a run and its export, wherever they lie.

    Args:
      params: the digest of the parameters, if it is known.
    """
    fields = dataclasses.asdict(trained.config)
    config = {name: x for name, x in fields.items() if not (name in _UNSAID or name.endswith("dropout_rate"))}
    each = {"": trained.facts, **(trained.facts.get("tasks") or {})}
    labels = {name: [*map(str, facts.get("labels") or ())] for name, facts in each.items()}
    said = [params or digest(trained.params), trained.config.encoder, config, labels]
    return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()[:16]
