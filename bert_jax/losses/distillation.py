"""Learning from a trained model, the teacher (Hinton et al. 2015; Sanh et al. 2019; Jiao et al. 2020).

An objective or a task makes ``Lessons`` of a ``Teacher``: terms that stand beside the terms of the objective or task,
and the forward pass of both models, which gives the outputs that these terms read.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.configuration import nearest
from bert_jax.errors import UserError
from bert_jax.losses.cross_entropy import Teachable
from bert_jax.losses.teacher import WHERE, Teacher, TeacherConfig, pairs_of
from bert_jax.models.config import ModelConfig, TransformerConfig
from bert_jax.models.dropout import RowRng
from bert_jax.models.heads import HiddenStates, Outputs
from bert_jax.models.kernels.plain import LONG, scores
from bert_jax.models.masks import Visible, bias
from bert_jax.models.model import Model, Part, head_class, shapes_of
from bert_jax.models.transformer import factors_of
from bert_jax.records import Batch, BatchSpec, Sum
from bert_jax.task import Term

FROZEN = WHERE  # the name of the teacher's parameters among the frozen variables
SAID = "teacher_"  # begins the name of an output of the teacher
PROJECTION = "hidden_projection"  # the part of the student's parameters that widens its hidden states


@dataclasses.dataclass(frozen=True)
class _SoftLoss:
    """A loss in which the teacher's outputs take the place of labels."""

    loss: Teachable
    temperature: float

    def __call__(self, outputs: Outputs, batch: Batch) -> Sum:
        said = {name: _taught({**outputs, **batch}, SAID + name) for name in self.loss.scores}
        return self.loss.taught(outputs, said, batch, self.temperature)


@dataclasses.dataclass(frozen=True)
class _Distance:
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
      terms: the terms of the objective or the task, and after them the terms that the teacher adds.
      parts: the parts of the student's parameters that only the lessons need.
      student_parts: the heads of the student's model, for ``forward``.
      params: the parameters of the teacher.
      cached: whether batches have the outputs of the teacher, so that a step does not run the teacher.
    """

    def __init__(
        self,
        teacher: Teacher,
        student: ModelConfig,
        parts: Sequence[Part],
        terms: Mapping[str, Term],
        teachers: tuple[Sequence[Part], Sequence[int] | None] | None = None,
        kinds: Collection[str] = (),
    ):
        """Check that the teacher has the outputs that the terms read; nothing is computed.

        Args:
          parts, terms: the heads of the student's model, and the terms of its loss.
          teachers: the heads of the teacher, if they are not ``parts``, and the labels of the student by their places
            among the outputs of the teacher, if the order differs.
          kinds: the kinds of batches, for messages.

        Raises:
          UserError: the teacher lacks an output that the terms read, or does not fit the student.
        """
        config, trained = teacher.config, teacher.trained
        if student.reads != trained.config.reads:
            where, other = (f" in {', '.join(kinds)}", ", or objectives that read as it does") if kinds else ("", "")
            raise UserError(
                f"{WHERE}.init={trained.source} reads {trained.config.reads}, and the student "
                f"{student.reads}{where}; take a teacher that reads the same{other}"
            )
        self._config, self._order, self.cached = teacher.config, teachers and teachers[1], config.cached
        soft = _soft_losses(config, terms)
        self._said = [name for loss in soft.values() for name in loss.scores]
        own, its, self._layers = tuple[Part, ...](), tuple[Part, ...](), list[tuple[int, int]]()
        if config.hidden.weight or config.attention.weight:
            pairs = pairs_of(config.layers, student.num_layers, trained.config.num_layers)
        if config.attention.weight:
            _check_heads(student, trained)
            self._layers = [pair for pair in pairs if pair != (0, 0)]
        if config.hidden.weight:
            width = trained.config.hidden_size
            own_states, its_states = zip(*pairs, strict=True)
            own_width = 0 if width == student.hidden_size else width
            own = (Part.of(PROJECTION, HiddenStates, states=own_states, width=own_width),)
            its = (Part.of(PROJECTION, HiddenStates, states=its_states),)
        self._states, self.student_parts = bool(own), (*parts, *own)
        self.parts = tuple(part for part in own if dict(part.options)["width"])
        heads = tuple(teachers[0] if teachers else parts) if soft else ()
        self._model = _model_of(teacher, heads, its, {name: loss.scores for name, loss in soft.items()})
        self.params = dict(teacher.whole or trained.params)
        names = {id(tree): name for name, tree in self.params.items()}
        self._names = {own: names[id(tree)] for own, tree in trained.params.items()}
        self.terms = {name: term._replace(weight=term.weight * config.labels) for name, term in terms.items()}
        for name, loss in soft.items():
            weight = config.soft.weight * terms[name].weight
            self._add(f"soft_{name}" if name else "soft", _SoftLoss(loss, config.soft.temperature), weight)
        if config.hidden.weight:
            self._add("hidden", _Distance("hidden_distance"), config.hidden.weight)
        if config.attention.weight:
            self._add("attention", _Distance("attention_distance"), config.attention.weight)

    @property
    def frozen(self) -> dict[str, Any]:
        """The frozen variables that a step reads."""
        return {} if self.cached else {FROZEN: self.params}

    def _add(self, name: str, loss: Any, weight: float) -> None:
        if name in self.terms:
            raise UserError(
                f"{WHERE} adds a term {name!r}, and the run has such a term; give the run's term another name"
            )
        self.terms[name] = Term(loss, weight)

    def forward(
        self, student: Model, params: Any, taught: Any, batch: Batch, rng: RowRng | None
    ) -> dict[str, jax.Array]:
        """Return the outputs [B, ...] of the student, and the outputs that the terms of the teacher read.

        Args:
          params, taught: the parameters of the student and of the teacher, which has neither dropout nor a gradient.
        """
        if self.cached:
            return self._run(student, params, batch, rng)[0]
        taught = {own: taught[name] for own, name in self._names.items()}
        outputs, factors = self._run(student, params, batch, rng)
        said, its_factors = jax.lax.stop_gradient(self._run(self._model, taught, batch, None))
        outputs |= self._named(said)
        if self._states:
            outputs["hidden_distance"] = _distance(outputs.pop("states"), said["states"], self._config.hidden.loss)
        if self._layers:
            pairs = [(factors[one - 1], its_factors[other - 1]) for one, other in self._layers]
            outputs["attention_distance"] = _distance_of_scores(pairs, batch, student.config.causal)
        return outputs

    def says(self, taught: Any, batch: Batch) -> dict[str, jax.Array]:
        """Return the teacher's outputs that soft targets read, by their names in outputs or, if cached, in batches."""
        taught = {own: taught[name] for own, name in self._names.items()}
        return self._named(self._run(self._model, taught, batch, None)[0])

    def _named(self, said: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        order = None if self._order is None else np.asarray(self._order)
        return {SAID + name: said[name] if order is None else said[name][..., order] for name in self._said}

    def _run(self, model: Model, params: Any, batch: Batch, rng: RowRng | None) -> tuple[dict[str, Any], Any]:
        """Return the outputs of a model, and queries and keys of its layers if these are compared."""
        if not self._layers:
            return dict(model.apply({"params": params}, batch, rng)), None  # type: ignore[arg-type]
        outputs, seen = model.apply({"params": params}, batch, rng, mutable=["intermediates"])
        return outputs, factors_of(seen["intermediates"]["encoder"])

    def flops(self, spec: BatchSpec) -> float:
        """Return the FLOPs of the teacher's forward pass on a row: a third of the FLOPs of a train step."""
        if self.cached:
            return 0.0
        rows = spec["input_ids"].shape
        masked, pooled = spec.get("masked_positions"), int("cls_positions" in spec)
        heads = (masked.shape[0] if masked else 0, pooled) if self._said else ()
        return math.prod(rows[:-1]) * self._model.config.train_flops(rows[-1], *heads) / 3


def _soft_losses(config: TeacherConfig, terms: Mapping[str, Term]) -> dict[str, Teachable]:
    """Return the losses in which the teacher takes the place of labels, by the name of their terms."""
    named = config.soft.terms
    if not config.soft.weight:
        return {}
    if unknown := [name for name in named if name not in terms]:
        known = nearest(unknown[0], terms) if any(terms) else "the loss here has one term, without a name: leave it out"
        raise UserError(f"{WHERE}.soft.terms has {unknown[0]!r}; {known}")
    chosen: dict[str, Any] = {name: terms[name].loss for name in named or terms}
    found = {name: loss for name, loss in chosen.items() if isinstance(loss, Teachable)}
    if lacking := [name for name in chosen if name not in found and (named or not found)]:
        raise UserError(
            f"{WHERE}.soft: the loss of the term {lacking[0]!r} compares no logits or numbers with labels, in whose "
            f"place a teacher's could be; {config.without_soft}"
        )
    return found


def _model_of(
    teacher: Teacher, heads: Sequence[Part], states: Sequence[Part], needed: Mapping[str, Sequence[str]]
) -> Model:
    """Return the teacher's model.

    Args:
      needed: term -> the outputs that it reads.

    Raises:
      UserError: the teacher lacks such an output, or its parameters have other shapes than the model's.
    """
    trained, here = teacher.trained, f"{WHERE}.init={teacher.trained.source}"
    config = trained.config
    model = Model(config, (*(part for part in heads if part.name in trained.params), *states))
    outputs, expected = shapes_of(model, {name for part in heads for name in head_class(config, part.head).reads})
    for term, names in needed.items():
        if missing := [name for name in names if name not in outputs]:
            lacking = ", ".join(part.name for part in heads if part.name not in trained.params)
            raise UserError(
                f"{here} has no {lacking or missing[0]}, and soft targets of the term {term!r} read its {missing[0]}; "
                f"take a teacher that has it, name other terms in {WHERE}.soft.terms, or {teacher.config.without_soft}"
            )
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


def _check_heads(student: ModelConfig, trained: Any) -> None:
    """Raise ``UserError`` if the attention scores of two models cannot be compared."""
    where, config = f"{WHERE}.attention", trained.config
    if not (isinstance(student, TransformerConfig) and isinstance(config, TransformerConfig)):
        raise UserError(f"{where} compares layers of Transformers, and one of the two models has none; set weight to 0")
    if any(block.relative for one in (student, config) for block in one.blocks):
        raise UserError(
            f"{where} compares products of queries and keys, and the scores of relative attention have other terms "
            "too; set weight to 0"
        )
    if student.num_heads != config.num_heads:
        raise UserError(
            f"{where} compares heads one by one, and the student has {student.num_heads}, {WHERE}.init="
            f"{trained.source} {config.num_heads}; set {where}.weight to 0, or config.model.num_heads to "
            f"{config.num_heads}"
        )


def _distance_of_scores(pairs: Any, batch: Batch, causal: bool) -> jax.Array:
    """Return the mean squared differences of the scores of each query, summed over layers: [B, L] or [B, C, L].

    ``pairs``: (query, key) of the student and of the teacher, for each pair of layers.
    """
    shape = batch["attention_mask"].shape
    if shape[-1] >= LONG:
        raise UserError(
            f"{WHERE}.attention compares all scores of a row, which are held at once for rows of fewer than {LONG:,} "
            f"positions; these have {shape[-1]:,}: set {WHERE}.attention.weight to 0"
        )
    seen = Visible(batch["attention_mask"].reshape(-1, shape[-1]), batch.get("sequence_ids"), causal)
    is_seen = (bias(seen) == 0)[:, 0].astype(jnp.float32)  # [B, 1 or L, L]
    total: Any = 0.0
    for factors in pairs:
        own, its = (scores(*one) for one in factors)  # [B, H, L, L]
        total += jnp.sum(jnp.mean((own - its) ** 2, axis=1) * is_seen, axis=-1)
    return (total / jnp.maximum(jnp.sum(is_seen, axis=-1), 1.0)).reshape(shape)  # type: ignore[no-any-return]
