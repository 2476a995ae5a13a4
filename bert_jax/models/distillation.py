"""Learning from a trained model, the teacher (Hinton et al. 2015; Sanh et al. 2019; Jiao et al. 2020).

A ``Teacher`` is a trained model with the keys of ``config.teacher``. An objective or a task makes ``Lessons`` of it:
the terms that stand beside its own, and the forward pass of both models, which gives what these terms read.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bert_jax.configuration import check_fields, nearest
from bert_jax.errors import UserError
from bert_jax.models.config import ModelConfig
from bert_jax.models.dropout import RowRng
from bert_jax.models.heads import Head, Outputs
from bert_jax.models.losses import Teachable
from bert_jax.models.model import IDS, Model, Part, encoder_file, head_class
from bert_jax.models.primitives import Dense
from bert_jax.records import Batch, BatchSpec, Sum
from bert_jax.task import Term

WHERE = "config.teacher"
FROZEN = WHERE  # the name of the teacher's parameters among the frozen variables
SAID = "teacher_"  # begins the name of an output of the teacher
PROJECTION = "hidden_projection"  # the part of the student's parameters that widens its hidden states


@dataclasses.dataclass(frozen=True)
class SoftConfig:
    """The keys of ``config.teacher.soft``: the teacher's distributions (or numbers) take the place of labels.

    The loss is T^2 KL(teacher || student) at temperature T, of the targets of a term of the objective or task (Hinton
    et al. 2015, section 2); of a regression, the squared difference.
    """

    weight: float = 1.0  # times the weight of the term itself; 0 leaves soft targets out
    temperature: float = 1.0  # by which the logits of both models are divided
    terms: tuple[str, ...] = ()  # the terms that are taught; (): all
    where: dataclasses.InitVar[str] = f"{WHERE}.soft"

    def __post_init__(self, where: str) -> None:
        check_fields(self, where, "at least 0 is needed", "weight", sound=lambda value: value >= 0)
        check_fields(self, where, "more than 0 is needed", "temperature", sound=lambda value: value > 0)


@dataclasses.dataclass(frozen=True)
class HiddenConfig:
    """The keys of ``config.teacher.hidden``: the hidden states of mapped layers are to be alike, at real tokens.

    With "mse", the loss is the mean squared difference of their entries (Jiao et al. 2020, equations 8 and 9), with
    "cosine" 1 - their cosine (Sanh et al. 2019, section 3), summed over the mapped layers.
    """

    weight: float = 0.0  # 0 leaves hidden states out
    loss: Literal["mse", "cosine"] = "mse"  # the mean squared difference, or 1 - the cosine
    where: dataclasses.InitVar[str] = f"{WHERE}.hidden"

    def __post_init__(self, where: str) -> None:
        check_fields(self, where, "at least 0 is needed", "weight", sound=lambda value: value >= 0)


@dataclasses.dataclass(frozen=True)
class TeacherConfig:
    """The keys of ``config.teacher``.

    Layers: with "uniform", of N and n layers, m N / n teaches m (Jiao et al. 2020, section 3.1), and the embeddings
    teach the embeddings; with "every_second", 2 m teaches m, likewise; with "last", the last teaches the last, and no
    other; a tuple has, for each layer of the student, the number of its teacher.
    """

    init: str  # a Hugging Face directory, the workdir of a run, or WORKDIR@step
    labels: float = 1.0  # what the weights of the objective's or the task's own terms are multiplied by
    soft: SoftConfig = SoftConfig()
    hidden: HiddenConfig = HiddenConfig()
    # which of its layers teach those of the student: uniform, every_second, last, or a tuple of them from 1
    layers: Any = "uniform"

    def __post_init__(self) -> None:
        check_fields(self, WHERE, "at least 0 is needed", "labels", sound=lambda value: value >= 0)
        if not (self.soft.weight or self.hidden.weight):
            raise UserError(
                f"{WHERE} teaches nothing: soft.weight and hidden.weight are 0; set one of them, or leave {WHERE} out"
            )


@dataclasses.dataclass(frozen=True)
class Teacher:
    """A trained model (``params``, ``config``, ``source``) and what is to be learned from it."""

    config: TeacherConfig
    trained: Any


class States(Head):
    """Gives the hidden states of some layers, through one projection that they share if ``width`` is not 0.

    Attributes:
      states: their numbers; 0 is that of the embeddings.
    """

    states: tuple[int, ...] = ()
    width: int = 0
    reads_hidden: ClassVar[bool] = True

    @nn.compact
    def __call__(self, outputs: Outputs, batch: Batch, rng: RowRng | None) -> dict[str, jax.Array]:
        """Return states [B, S, L, D], or [B, S, L, ``width``]."""
        config, hidden = self.config, outputs["hidden"]
        x = jnp.stack([hidden[number] for number in self.states], axis=1)
        if self.width:
            inputs, width = (("embed", x.shape[-1]),), ((None, self.width),)
            x = Dense(config, inputs, width, config.param_dtype, name="dense")(x)
        return {"states": x}


@dataclasses.dataclass(frozen=True)
class SoftLoss:
    """A loss in which the teacher's outputs take the place of labels."""

    loss: Teachable
    temperature: float

    def __call__(self, outputs: Outputs, batch: Batch) -> Sum:
        said = {name: _taught(outputs, SAID + name) for name in self.loss.scores}
        return self.loss.taught(outputs, said, batch, self.temperature)


@dataclasses.dataclass(frozen=True)
class Distance:
    """The sum of an output [B, L] or [B, C, L] over the real tokens, and their number."""

    output: str

    def __call__(self, outputs: Outputs, batch: Batch) -> Sum:
        weights = batch["attention_mask"].astype(jnp.float32)
        if "row_weights" in batch:  # 0 in rows that only fill up the last batch of an evaluation
            weights *= batch["row_weights"].reshape(-1, *[1] * (weights.ndim - 1))
        return Sum(jnp.sum(_taught(outputs, self.output) * weights), jnp.sum(weights))


def _taught(outputs: Outputs, name: str) -> jax.Array:
    """Return an output that ``Lessons.forward`` gives."""
    if name not in outputs:
        raise UserError(
            f"{WHERE} is not reached by the forward of this file of your own; call super().forward in it, or leave "
            f"{WHERE} out"
        )
    return outputs[name]


class Lessons:
    """What an objective or a task learns from its teacher.

    Attributes:
      terms: those of the objective or the task, and after them those that the teacher adds.
      parts: the parts of the student's parameters that only the lessons need.
      student_parts: the heads of the student's model, for ``forward``.
      params: the parameters of the teacher.
    """

    def __init__(
        self,
        teacher: Teacher,
        student: ModelConfig,
        parts: Sequence[Part],
        terms: Mapping[str, Term],
        teachers: tuple[Sequence[Part], Sequence[int] | None] | None = None,
    ):
        """Check that the teacher has what the terms read; nothing is computed.

        Args:
          parts, terms: those of the student.
          teachers: the heads of the teacher, if they are not ``parts``, and the labels of the student by their places
            among the outputs of the teacher, if the order differs.

        Raises:
          UserError: the teacher lacks what it is to teach, or does not fit the student.
        """
        config, trained = teacher.config, teacher.trained
        if student.causal != trained.config.causal:
            reads = {True: "what came before", False: "both sides"}
            raise UserError(
                f"{WHERE}.init={trained.source} reads {reads[trained.config.causal]}, and the student "
                f"{reads[student.causal]}; take a teacher that reads the same"
            )
        self._config, self._order = teacher.config, teachers and teachers[1]
        soft = _soft_losses(config.soft, terms)
        self._said = [name for loss in soft.values() for name in loss.scores]
        own, its = tuple[Part, ...](), tuple[Part, ...]()
        if config.hidden.weight:
            pairs = pairs_of(config.layers, student.num_layers, trained.config.num_layers)
            width = trained.config.hidden_size
            own_states, its_states = zip(*pairs, strict=True)
            own = (Part.of(PROJECTION, States, states=own_states, width=width if width != student.hidden_size else 0),)
            its = (Part.of(PROJECTION, States, states=its_states),)
        self._states, self.student_parts = bool(own), (*parts, *own)
        self.parts = tuple(part for part in own if dict(part.options)["width"])
        heads = tuple(teachers[0] if teachers else parts) if soft else ()
        self._model = _model_of(trained, heads, its, {name: loss.scores for name, loss in soft.items()})
        self.params = dict(trained.params)
        self.terms = {name: term._replace(weight=term.weight * config.labels) for name, term in terms.items()}
        for name, loss in soft.items():
            weight = config.soft.weight * terms[name].weight
            self._add(f"soft_{name}" if name else "soft", SoftLoss(loss, config.soft.temperature), weight)
        if config.hidden.weight:
            self._add("hidden", Distance("hidden_distance"), config.hidden.weight)

    def _add(self, name: str, loss: Any, weight: float) -> None:
        if name in self.terms:
            raise UserError(f"{WHERE} adds a term {name!r}, and the run has one of that name; give that another name")
        self.terms[name] = Term(loss, weight)

    def forward(
        self, student: Model, params: Any, taught: Any, batch: Batch, rng: RowRng | None
    ) -> dict[str, jax.Array]:
        """Return the outputs [B, ...] of the student, and those that the terms of the teacher read.

        Args:
          params, taught: the parameters of the student and of the teacher, which has neither dropout nor a gradient.
        """
        outputs: dict[str, jax.Array] = {**student.apply({"params": params}, batch, rng)}  # type: ignore[dict-item]
        said: Any = jax.lax.stop_gradient(self._model.apply({"params": taught}, batch))
        for name in self._said:
            outputs[SAID + name] = said[name] if self._order is None else said[name][..., np.asarray(self._order)]
        if self._states:
            outputs["hidden_distance"] = _distance(outputs.pop("states"), said["states"], self._config.hidden.loss)
        return outputs

    def flops(self, spec: BatchSpec) -> float:
        """Return the FLOPs of the teacher's forward pass on a row, which are a third of those of a train step."""
        rows = spec["input_ids"].shape
        masked, pooled = spec.get("masked_positions"), int("cls_positions" in spec)
        heads = (masked.shape[0] if masked else 0, pooled) if self._said else ()
        return math.prod(rows[:-1]) * self._model.config.train_flops(rows[-1], *heads) / 3


def pairs_of(layers: Any, student: int, teacher: int) -> tuple[tuple[int, int], ...]:
    """Return which hidden states of a teacher teach which of a student, as (student's, teacher's); 0: the embeddings.

    Args:
      layers: see ``TeacherConfig``.
      student, teacher: the numbers of layers.

    Raises:
      UserError: they do not fit together.
    """
    have = f"the teacher has {teacher} layers, the student {student}"
    if not (student and teacher):
        raise UserError(f"{WHERE}.hidden: {have}; both need some")
    if layers == "last":
        return ((student, teacher),)
    if layers == "uniform":
        if teacher % student:
            raise UserError(
                f"{WHERE}.layers is 'uniform', and {have}, which do not divide; give a tuple of {student} layers of the"
                " teacher, from 1, or 'last'"
            )
        chosen: Any = tuple(teacher // student * m for m in range(1, student + 1))
    elif layers == "every_second":
        if teacher // 2 != student:
            raise UserError(f"{WHERE}.layers is 'every_second', and {have}; the student needs {teacher // 2}")
        chosen = tuple(range(2, teacher + 1, 2))
    else:
        chosen = layers
    numbers = isinstance(chosen, tuple | list) and all(type(one) is int for one in chosen)
    if not numbers or len(chosen) != student or not all(1 <= one <= teacher for one in chosen):
        raise UserError(
            f"{WHERE}.layers is {layers!r}, and {have}; 'uniform', 'every_second', 'last' or a tuple of {student} "
            f"numbers from 1 to {teacher} is needed"
        )
    return ((0, 0), *enumerate(chosen, start=1))


def digest(tree: Any) -> str:
    """Return the first 16 hex digits of a sha256 of names, shapes, dtypes and values of all arrays in ``tree``."""
    found = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        found.update(f"{jax.tree_util.keystr(path)} {leaf.shape} {leaf.dtype}\n".encode())
        found.update(np.ascontiguousarray(leaf).reshape(-1).view(np.uint8).data)
    return found.hexdigest()[:16]


def _soft_losses(config: SoftConfig, terms: Mapping[str, Term]) -> dict[str, Teachable]:
    """Return the losses in which the teacher takes the place of labels, by the name of their terms."""
    if not config.weight:
        return {}
    if unknown := [name for name in config.terms if name not in terms]:
        raise UserError(f"{WHERE}.soft.terms has {unknown[0]!r}; {nearest(unknown[0], terms)}")
    chosen: dict[str, Any] = {name: terms[name].loss for name in config.terms or terms}
    found = {name: loss for name, loss in chosen.items() if isinstance(loss, Teachable)}
    if lacking := [name for name in chosen if name not in found and (config.terms or not found)]:
        raise UserError(
            f"{WHERE}.soft: the loss of the term {lacking[0]!r} compares no logits or numbers with labels, in whose "
            f"place a teacher's could be; set {WHERE}.soft.weight to 0, and {WHERE}.hidden.weight above 0"
        )
    return found


def _model_of(
    trained: Any, heads: Sequence[Part], states: Sequence[Part], needed: Mapping[str, Sequence[str]]
) -> Model:
    """Return the teacher's model.

    Args:
      needed: term -> the outputs that it reads.

    Raises:
      UserError: it lacks such an output, or its parameters have other shapes than those of this model.
    """
    config, here = trained.config, f"{WHERE}.init={trained.source}"
    model = Model(config, (*(part for part in heads if part.name in trained.params), *states))
    reads = {name for part in heads for name in head_class(config, part.head).reads}
    batch = {name: jnp.zeros((1, 1), jnp.int32) for name in {*IDS, *encoder_file(config.encoder).Encoder.reads, *reads}}
    outputs, variables = jax.eval_shape(lambda: model.init_with_output(jax.random.key(0), batch))
    for term, names in needed.items():
        if missing := [name for name in names if name not in outputs]:
            lacking = ", ".join(part.name for part in heads if part.name not in trained.params)
            raise UserError(
                f"{here} has no {lacking or missing[0]}, and soft targets of the term {term!r} read its {missing[0]}; "
                f"take a teacher that has it, name other terms in {WHERE}.soft.terms, or set {WHERE}.soft.weight to 0"
            )
    expected = nn.unbox(variables)["params"]
    for name, tree in expected.items():
        if _shapes(tree) != _shapes(trained.params[name]):
            raise UserError(f"{here}: its {name} is unlike that of this run; take a teacher with the same head")
    return model


def _shapes(tree: Any) -> Any:
    return jax.tree.map(lambda x: tuple(x.shape), dict(tree))


def _distance(student: jax.Array, teacher: jax.Array, kind: str) -> jax.Array:
    """Return the distances of hidden states [B, ..., S, L, D] summed over S: [B, ..., L] in float32 or wider."""
    student, teacher = (x.astype(jnp.promote_types(x.dtype, jnp.float32)) for x in (student, teacher))
    if kind == "mse":
        return jnp.sum(jnp.mean((student - teacher) ** 2, axis=-1), axis=-2)
    product = jnp.sum(student * teacher, axis=-1)
    squares = jnp.sum(student**2, axis=-1) * jnp.sum(teacher**2, axis=-1)
    return jnp.sum(1.0 - product * jax.lax.rsqrt(jnp.maximum(squares, 1e-12)), axis=-2)
