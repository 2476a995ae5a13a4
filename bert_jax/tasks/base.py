"""Has the base class of downstream tasks: rows of labelled examples, an encoder with one head, and sums of losses."""

from __future__ import annotations

import abc
import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import configuration
from bert_jax.errors import UserError, few
from bert_jax.examples.columns import Roles
from bert_jax.losses import distillation
from bert_jax.losses.cross_entropy import token_metrics
from bert_jax.losses.distillation import Lessons
from bert_jax.losses.teacher import Teacher
from bert_jax.metric_names import STANDARD_ERROR
from bert_jax.models.bilstm import BiLstm
from bert_jax.models.config import ModelConfig
from bert_jax.models.dropout import RowRng
from bert_jax.models.model import Model, Part
from bert_jax.parts import catalogue
from bert_jax.records import Batch, BatchSpec, Example, Feature, Sum
from bert_jax.rows import random
from bert_jax.rows.example_rows import EncodedRows, ExampleRows, bucket_lengths, pair_sequences
from bert_jax.rows.packed_examples import PackedExamples, row_length
from bert_jax.rows.rows_config import Packing
from bert_jax.task import Losses, RowSource, SingleTask, Term, Variables, measure_terms
from bert_jax.tasks.findings import Judge
from bert_jax.text.tokenizer import Tokenizer

ProblemType = Literal["single_label_classification", "regression", "multi_label_classification"]
_NOTED_UNKNOWN = 0.1  # with a larger share of [UNK] tokens, the user gets a note
KIND = "train"  # the kind of batches with the longest rows; evaluation uses it too
PACKED = f"{KIND}_packed"  # the kind of batches whose rows hold several examples


def with_error(name: str, score: float, error: float) -> dict[str, float]:
    """Return a score that is reached without reading the text, and its standard error, as ``guess`` returns them."""
    return {name: score, f"{name}{STANDARD_ERROR}": error}


@dataclasses.dataclass(frozen=True)
class Setting:
    """The arguments that every task takes besides its config.

    Attributes:
      splits: name of a split -> its examples. The split whose name begins with "train" is trained on; each split whose
        name begins with "dev" is evaluated separately; each split whose name begins with "test" is predicted at the
        end.
      labels: names of the classes, in the order of the logits; () if a task has none.
      batch_size: the number of examples of a batch; if rows are packed, on average.
      packing: with "bucketed", the rows of a batch have about the same length and are padded to that length; with
        "packed", training rows hold several examples.
      frozen: parts of the model (``encoder``, ``pooler``) that are not trained.
      bilstm_layers: layers of a BiLSTM between encoder and head (Devlin et al. 2019, section 5.1). If 0, no BiLSTM.
      teacher: the model of ``config.teacher``.
    """

    splits: Mapping[str, tuple[Example, ...]]
    tokenizer: Tokenizer
    model: ModelConfig
    labels: tuple[str, ...]
    max_length: int
    batch_size: int
    seed: int = 0
    packing: Packing = "bucketed"
    frozen: tuple[str, ...] = ()
    bilstm_layers: int = 0
    teacher: Teacher | None = None

    def names(self, prefix: str) -> tuple[str, ...]:
        """Return the names of the splits that begin with ``prefix``."""
        return tuple(name for name in self.splits if name.startswith(prefix))


class ExampleTask(SingleTask, abc.ABC):
    """A ``bert_jax.task.Task`` of labelled examples. Each task's file completes it by a subclass.

    Class attributes of a task:
      roles: the required and the optional roles (named inputs) of an example.
      answer: the role that a model has to predict.
      main_metric: the metric by which the best checkpoint is chosen.
      gathered_outputs: see ``bert_jax.task.Task``.
      num_choices: C, the number of sequences in a row; None if a row is a single sequence.
      exported_as: the end of the name of the transformers class that a finished model is written as, and its
        ``problem_type`` for a text classifier; None if transformers has no class with this head.
      head_dropout: the rate of ``models.config.ModelConfig`` that the head has unless the task's config has one.
      judge: chooses the predictions that the report shows; None if it shows no predictions.
      titles: metric -> its title in the report, besides the base class's titles; "" if it is not drawn (``titles_of``).
      reads_one_vector: whether the last head is one dense layer, ``dense``, on one vector of a text: a probe learns it.
      whole_batches: whether a row's loss depends on the other rows of its batch, so that micro-batches would change it.
      writes: how a model of both sides that has learned this writes (``generation.steppers``); "" if it does not.
      packs: whether examples may share a row: heads and terms then read features and outputs [B, K, ...] for [B, ...].
    """

    roles: Roles
    answer: str
    main_metric: str
    gathered_outputs: tuple[str, ...] = ("logits",)
    num_choices: int | None = None
    exported_as: tuple[str, ProblemType | None] | None = None
    head_dropout: ClassVar[str] = "dropout_rate"
    judge: Judge | None = None
    titles: ClassVar[Mapping[str, str]] = {"loss": "Loss"}
    reads_one_vector = False
    whole_batches: bool = False
    writes: ClassVar[str] = ""
    packs: ClassVar[bool] = False
    dtype: str
    lessons: Lessons | None = None  # what is learned from the teacher, if there is one

    def __init__(self, config: Any, setting: Setting):
        """Encode the examples. ``notes`` gets lines about them for the user, such as how many were cut.

        Args:
          config: the ``Config`` of the task's file.

        Raises:
          UserError: an example cannot be encoded, a label is unknown, or rows are longer than the model allows.
        """
        self.config, self.setting, self.main_metric = config, setting, self.metric(config)
        self.check(setting.splits)
        self.notes: list[str] = getattr(self, "notes", [])  # the subclass's __init__ may have written some already
        self.rows: dict[str, EncodedRows] = {}
        for name, examples in setting.splits.items():
            before = len(self.notes)
            self.rows[name] = self.encode(name, examples)
            self._note_unknown(self.rows[name])
            self.notes[before:] = [f"{name}: {line}" for line in self.notes[before:]]
        length = self._padded(*[name for name in self.rows if not name.startswith("test")] or self.rows)
        setting.model.check_lengths({"train": length})
        train = setting.names("train")
        self.lengths = {KIND: length}
        if setting.packing == "bucketed" and train:
            every = np.concatenate([self.rows[name].lengths for name in train])
            self.lengths = bucket_lengths(KIND, every, length, setting.batch_size)
        if setting.packing == "packed" and train:
            self.lengths[PACKED] = row_length(self.rows[train[0]].lengths, self._padded(*train), setting.max_length)
        self.heldout_parts = setting.names("dev") or (("",) if train else tuple(setting.splits))
        self.batch_specs = self._specs()
        if PACKED in self.lengths:
            self.notes.append(f"{train[0]}: {self.packed(0).describe()}")
        self._terms, self.model, self.dtype = self.terms(config), self.module(setting.model), setting.model.dtype
        self.flops_per_row = {
            kind: setting.model.train_flops(n) * (self.num_choices or 1) for kind, n in self.lengths.items()
        }
        if setting.teacher:
            self._learn_from(setting.teacher)
        self.loss_weights = {name: term.weight for name, term in self._terms.items()}

    # ---- For subclasses to define or change -------------------------------------------------------------------------

    @classmethod
    def metric(cls, config: Any) -> str:
        """Return the ``main_metric`` of a task with this config."""
        del config
        return cls.main_metric

    @classmethod
    def labels(cls, config: Any, examples: Sequence[Example]) -> tuple[str, ...]:
        """Return the names of the classes that occur in the training ``examples``; () if the task has no classes."""
        del config, examples
        return ()

    def check(self, splits: Mapping[str, Sequence[Example]]) -> None:
        """Check the answers of all examples.

        Raises:
          UserError: an answer is not among the labels. The message names such answers of all splits.
        """
        known = set(self.setting.labels)
        problems = []
        for split, examples in splits.items():
            unseen: dict[str, list[str]] = {}
            for example in examples:
                for name in self.answer_names(example):
                    if name not in known:
                        unseen.setdefault(name, []).append(example["id"])
            if answers := [f"{name!r} ({len(ids):,} times, as in {ids[0]})" for name, ids in sorted(unseen.items())]:
                problems.append(f"{split} has {self.answer} that training lacks: {few(answers)}")
        if problems:
            raise UserError(
                f"{'; '.join(problems)}; training has {', '.join(self.setting.labels)}. Correct the examples, or leave "
                "them out"
            )

    def answer_names(self, example: Example) -> Sequence[str]:
        """Return those answers of an example that must be among the labels."""
        del example
        return ()

    @abc.abstractmethod
    def encode(self, split: str, examples: Sequence[Example]) -> EncodedRows:
        """Return the rows of a split, with every feature that a batch has but ``attention_mask``.

        There is one row per example unless the task says otherwise. Examples without labels get the label weight 0.
        """

    @abc.abstractmethod
    def head(self, dropout_rate: float) -> tuple[Part, ...]:
        """Return the parts above the encoder.

        ``dropout_rate``: the rate in the task's config or, if that is None, the model's rate ``head_dropout``.
        """

    def module(self, model: ModelConfig) -> Model:
        """Return the whole model: the encoder, a BiLSTM if the setting asks for one, and the task's head."""
        rate = getattr(self.config, "dropout_rate", None)
        layers = self.setting.bilstm_layers
        between = (Part.of("bilstm", BiLstm, num_layers=layers),) if layers else ()
        return Model(model, (*between, *self.head(getattr(model, self.head_dropout) if rate is None else rate)))

    def with_model(self, model: ModelConfig) -> ExampleTask:
        """Return the task, with the rows that are encoded already, for a model of another config of the same sizes.

        It has no teacher.
        """
        other = copy.copy(self)
        other.setting, other.model = dataclasses.replace(self.setting, model=model, teacher=None), self.module(model)
        other.lessons, other._terms = None, self.terms(self.config)
        return other

    @abc.abstractmethod
    def terms(self, config: Any) -> dict[str, Term]:
        """Return the terms of the loss by name; the metric of a term named "" is ``loss``."""

    def forward(self, variables: Variables, batch: Batch, rng: RowRng | None) -> dict[str, jax.Array]:
        """Run the model and return its outputs [B, ...] by name, which terms read. If ``rng`` is None, no dropout."""
        frozen = dict(variables.frozen)
        taught = frozen.pop(distillation.FROZEN, None)
        params = {**variables.params, **jax.lax.stop_gradient(frozen)}
        if self.lessons:
            return self.lessons.forward(self.model, params, taught, batch, rng)
        return self.model.apply({"params": params}, batch, rng)  # type: ignore[return-value]

    @abc.abstractmethod
    def finish(self, part: str, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        """Return the metrics of the whole of ``part``, name -> value, from the outputs for all its rows.

        A new metric is one more name here; ``config.selection.metric`` may name it. A mean over rows needs only one
        more measure of a term.
        """

    def errors(self, part: str, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        """Return the standard errors of metrics of ``part``. Without them, no score is said to beat a baseline."""
        del part, outputs
        return {}

    @abc.abstractmethod
    def predictions(self, split: str, outputs: dict[str, np.ndarray]) -> list[dict[str, Any]]:
        """Return one record per example, in the split's order: ``id``, ``prediction`` and details."""

    def guess(self) -> dict[str, float]:
        """Return scores that are reached on all held-out rows without reading the text; {} if none is known.

        ``<name>_standard_error`` is the standard error of the score ``<name>``, if it has one.
        """
        return {}

    # ---- Methods of ``bert_jax.task.Task`` ---------------------------------------------------------------------------

    def source(self, split: Literal["train", "eval"], kind: str, phase: int, part: str | None = None) -> RowSource:
        """Return the source of the training rows or, for "eval", of the rows of ``part``, which may be any split."""
        del kind
        if split == "train":
            if PACKED in self.lengths:
                return self.packed(phase)
            [name] = self.setting.names("train")
            return ExampleRows(self.rows[name], self.lengths, random.key("examples", self.setting.seed, phase))
        name = part or self.heldout_parts[0]
        return ExampleRows(self.rows[name], {KIND: max(self.lengths[KIND], self._padded(name))}, None)

    def init(self, rng: Any) -> Variables:
        spec = self.batch_specs[KIND]
        batch = {name: jnp.zeros((1, *feature.shape), feature.dtype) for name, feature in spec.items()}
        params = self.model.init(rng, batch)["params"]
        unknown = set(self.setting.frozen) - set(params)
        if unknown:
            raise UserError(f"config.frozen names {', '.join(sorted(unknown))}; parts are {', '.join(params)}")
        frozen = {name: params[name] for name in params if name in self.setting.frozen}
        trained = {name: params[name] for name in params if name not in frozen}
        return Variables(trained, frozen | (self.lessons.frozen if self.lessons else {}))

    def loss(self, variables: Variables, batch: Batch, rng: Any) -> Losses:
        losses, metrics, _ = measure_terms(self._terms, self.forward(variables, batch, rng), batch)
        return Losses(losses, metrics | token_metrics(batch))

    def outputs(self, variables: Variables, batch: Batch) -> dict[str, jax.Array]:
        return self.forward(variables, batch, None)

    def score(self, outputs: dict[str, jax.Array], batch: Batch) -> dict[str, Sum]:
        """Return the metrics of the terms, as sums over the batch."""
        return measure_terms(self._terms, outputs, batch).metrics

    def baselines(self, kind: str, num_rows: int) -> dict[str, float]:
        del kind, num_rows
        return self.guess()

    def has_answers(self, split: str) -> bool:
        """Return whether every example of a split has an answer, so that predictions can be scored."""
        return all(example.get(self.answer) is not None for example in self.setting.splits[split])

    def _learn_from(self, teacher: Teacher) -> None:
        """Add what is learned from ``teacher``. Raises ``UserError`` if it was trained for something else."""
        trained, heads = teacher.trained, None
        if teacher.config.soft.weight:
            facts, here = trained.facts, f"{distillation.WHERE}.init={trained.source}"
            own, name = dict(facts.get("task") or {}), catalogue.name_of(type(self).__module__)
            if several := facts.get("tasks"):
                names = ", ".join(several)
                raise UserError(f"{here} was trained on several tasks; {distillation.WHERE}.task is one of {names}")
            if own.get("name") != name:
                raise UserError(
                    f"{here} was trained for {own.get('name', 'pretraining')}, and this run is of the task {name}; "
                    f"fine-tune a teacher for it first, or {teacher.config.without_soft}"
                )
            its, ours = tuple(facts.get("labels") or ()), self.setting.labels
            if set(its) != set(ours):
                raise UserError(f"{here} has the labels {few(its)}, and this run {few(ours)}; they have to be the same")
            like = copy.copy(self)
            like.config = configuration.build(type(self.config), own, "task", also=("name",))
            layers = facts.get("bilstm_layers", 0)
            like.setting = dataclasses.replace(self.setting, model=trained.config, labels=its, bilstm_layers=layers)
            heads = like.module(trained.config).parts, None if its == ours else [its.index(one) for one in ours]
        self.lessons = Lessons(teacher, self.setting.model, self.model.parts, self._terms, heads)
        self._terms, self.model = self.lessons.terms, self.model.clone(parts=self.lessons.student_parts)
        if self.lessons.cached:
            self._make_room(self.lessons)
        for kind, spec in self.batch_specs.items():
            self.flops_per_row[kind] += self.lessons.flops(spec)

    def _make_room(self, lessons: Lessons) -> None:
        """Give the rows zeros in place of the teacher's outputs, which ``runs.cached_teacher`` fills in."""
        shapes = []
        for length in (8, 16):
            spec = self._spec(length)
            rows = {name: jax.ShapeDtypeStruct((1, *one.shape), one.dtype) for name, one in spec.items()}
            shapes.append(jax.eval_shape(lessons.says, lessons.params, rows))
        if shapes[0] != shapes[1]:
            raise UserError(
                f"{distillation.WHERE}.cached keeps what a teacher says of a text, and in this task it says something "
                "of each token; set it to False"
            )
        for split, rows_of in self.rows.items():
            room = {name: np.zeros((len(rows_of), *x.shape[1:]), x.dtype) for name, x in shapes[0].items()}
            self.rows[split] = dataclasses.replace(rows_of, arrays={**rows_of.arrays, **room})
        self.batch_specs = self._specs()

    def packed(self, phase: int) -> PackedExamples:
        """Return the packed training rows."""
        [name] = self.setting.names("train")
        length, batch_size, at_end = self.lengths[PACKED], self.setting.batch_size, self.setting.model.summary == "last"
        key = random.key("examples", self.setting.seed, phase)
        return PackedExamples(self.rows[name], PACKED, length, batch_size, key, at_end)

    def _note_unknown(self, rows: EncodedRows) -> None:
        ids = rows.sequences.get("input_ids", np.zeros(0, np.int32))
        share = float(np.mean(ids == self.setting.tokenizer.unk_id)) if len(ids) else 0.0
        if share > _NOTED_UNKNOWN:
            self.notes.append(f"{share:.0%} of the tokens are [UNK]; is the vocabulary one of this language?")

    def _padded(self, *splits: str) -> int:
        """Return the length of the longest row of these splits, rounded up to a multiple of 8."""
        longest = max((int(self.rows[name].lengths.max(initial=0)) for name in splits), default=0)
        return min(self.setting.max_length, max(-(-longest // 8) * 8, 8))

    # ---- Helpers for subclasses ------------------------------------------------------------------------------------

    def _specs(self) -> dict[str, BatchSpec]:
        """Return the features of a row of each kind of batch."""
        return {kind: self.packed(0).spec if kind == PACKED else self._spec(n) for kind, n in self.lengths.items()}

    def _spec(self, length: int) -> BatchSpec:
        """Return the features of a row of ``length`` positions, as ``encode`` made them."""
        rows = next(iter(self.rows.values()))
        shape = (length,) if self.num_choices is None else (self.num_choices, length)
        sequences = {name: Feature(shape, "int32") for name in (*rows.sequences, "attention_mask")}
        return sequences | {name: Feature(a.shape[1:], str(a.dtype)) for name, a in rows.arrays.items()}

    def make_rows(self, sequences: Mapping[str, Sequence[Any]], arrays: Mapping[str, np.ndarray]) -> EncodedRows:
        """Return rows of weight 1. ``example_ids`` are the row numbers unless ``arrays`` has them."""
        num_rows = len(next(iter(sequences.values()))) // (self.num_choices or 1)
        own = {"row_weights": np.ones(num_rows, np.float32), "example_ids": np.arange(num_rows, dtype=np.int32)}
        return EncodedRows.of(sequences, {**own, **arrays}, self.num_choices)

    @staticmethod
    def targets(labels: Sequence[float | None], dtype: str) -> dict[str, np.ndarray]:
        """Return the arrays ``labels`` and ``label_weights``, 0 where a label is None."""
        known = np.array([label is not None for label in labels], np.float32)
        return {"labels": np.array([label or 0 for label in labels], dtype), "label_weights": known}

    def pair_sequences(self, texts: Sequence[str], pairs: Sequence[str | None]) -> dict[str, list[np.ndarray]]:
        """Call the function ``pair_sequences`` with the task's maximum length; note how many sequences were cut."""
        return pair_sequences(self.setting.tokenizer, texts, pairs, self.setting.max_length, self.notes.append)
