"""The base class of pretraining objectives: an encoder with heads, a loss made of terms, and rows of a corpus."""

from __future__ import annotations

import abc
import copy
import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import configuration
from bert_jax.corpora.columns import Column
from bert_jax.corpora.mixture import Mixture
from bert_jax.corpora.store import Corpus
from bert_jax.errors import UserError
from bert_jax.losses.cross_entropy import CrossEntropy, token_metrics
from bert_jax.losses.cross_entropy import prediction as prediction
from bert_jax.losses.distillation import FROZEN, Lessons
from bert_jax.models.config import ModelConfig, Reads
from bert_jax.models.dropout import RowRng
from bert_jax.models.model import EncoderPart, Model, Part, encoder_file, heads_of
from bert_jax.objectives.frozen import Frozen
from bert_jax.objectives.memory import check_memory, lanes_read, memory_of
from bert_jax.objectives.reading import ALWAYS, Functions, features_read, with_attention
from bert_jax.objectives.setting import ROW_KEYS
from bert_jax.objectives.setting import Config as Config
from bert_jax.objectives.setting import Setting as Setting
from bert_jax.objectives.terms import MLM as MLM
from bert_jax.objectives.terms import (
    MLM_TITLES,
    check_terms,
    count_labels,
    majority_rates,
    punctuation,
    with_words_alone,
)
from bert_jax.parts import catalogue
from bert_jax.records import Batch, BatchSpec, Sum
from bert_jax.rows import ngram_models, random, units
from bert_jax.rows.interfaces import TokenFacts
from bert_jax.rows.masking import MaskingConfig
from bert_jax.rows.mixture import MixedRows
from bert_jax.rows.rows_config import RowsConfig, arrangements_with
from bert_jax.rows.sequence_rows import SequenceRows
from bert_jax.task import Losses, RowSource, SingleTask, Variables, measure_terms
from bert_jax.task import Term as Term
from bert_jax.text.tokenizer import Tokenizer


class PretrainingObjective(SingleTask, abc.ABC):
    """A ``bert_jax.task.Task`` made of heads (parts) and loss terms, which each subclass chooses in its own file.

    It is made before text is read, so that everything else is checked first; ``with_text`` gives it the text.

    Class attributes of an objective:
      parts: the heads of the model, and encoders with heads that its own ``forward`` runs; if they depend on the
        config, set them before calling ``super().__init__``.
      arrangement: the default of ``config.objective.arrangement``.
      reads: the text from which a token is predicted: "both sides", "what came before", or "both ways, apart" (what
        comes before, and again what comes after). The model has the attention for it, whatever a model of --init has
        read.
      writes: how a model that has learned this writes (``generation.steppers``): LEFT_TO_RIGHT, MASK_AT_END, or
        "" if it does not; the facts of a run keep it.
      derived: the names of the features that ``inputs`` adds to a batch.
      columns: the columns of the corpus (``config.corpus.columns``) that are features [B, L] of a batch, under the same
        names: int32, 0 at special tokens and padding.
      differs: what a model of this objective does that no class of transformers does, as "it ..." goes on; "" if
        there is a class.
      titles: metric, such as "sop_loss" -> its title in the report, besides the base class's titles (``titles_of``).
      whole_batches: whether what ``inputs`` or a head computes of a row depends on other rows. If so, both see the
        global batch, and micro-batches are refused; otherwise both may see the rows of a device or micro-batch alone.
    """

    parts: tuple[Part | EncoderPart, ...]
    arrangement: ClassVar[str] = "sentence_pairs"
    reads: ClassVar[Reads] = "both sides"
    writes: str = ""
    derived: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    differs: ClassVar[str] = ""
    titles: ClassVar[Mapping[str, str]] = MLM_TITLES

    gathered_outputs: tuple[str, ...] = ()
    heldout_parts: tuple[str, ...] = ("",)
    whole_batches: bool = False
    dtype: str
    tokenizer: Tokenizer | None = None  # until ``with_text``
    lessons: Lessons | None = None  # what is learned from the teacher, if there is one
    _mixture: Mixture
    _facts: TokenFacts

    def __init__(self, config: Config, setting: Setting):
        """Check that the chosen parts fit together.

        Args:
          config: the ``Config`` of the objective's file.

        Raises:
          UserError: the encoder, arrangement, packing, masking and lengths do not fit together.
        """
        model = with_attention(setting.model, self.reads, self.name)
        self.config, self.setting, self._terms = config, setting._replace(model=model), self.terms(config)
        self._parts = heads = tuple(part for part in self.parts if isinstance(part, Part))
        check_terms(self._terms, catalogue.display_name(self.name))
        if setting.teacher:
            self.lessons = one = Lessons(setting.teacher, model, heads, self._terms, kinds=setting.max_lengths)
            self._terms, self._parts, self.parts = one.terms, one.student_parts, (*self.parts, *one.parts)
        self._model, frozen = Model(self.network(model), self._parts), self.frozen()
        frozen = {**frozen, FROZEN: self.lessons.params} if self.lessons else frozen
        self.given = Frozen(frozen, [part.name for part in self.parts], catalogue.display_name(self.name))
        self._check_model(model)
        model.check_lengths(setting.max_lengths)
        self.dtype, self.memory = model.dtype, memory_of(model)
        self._rows = {kind: self._with_features(self._rows_of(kind)) for kind in setting.max_lengths}
        self._heldout = {kind: self._heldout_of(rows) for kind, rows in self._rows.items()}
        self.batch_specs = {name: spec for rows in self._rows.values() for name, spec in rows.batch_specs.items()}
        self.loss_weights = {name: term.weight for name, term in self._terms.items()}
        self._set_vocabulary(model.vocab_size)
        check_memory(self)

    def with_text(self, corpus: Corpus | Mixture, tokenizer: Tokenizer, vocab_size: int | None = None) -> Self:
        """Return this objective with the text that it learns from; ``source`` and ``baselines`` need it.

        Args:
          vocab_size: the number of embeddings of the model; if None, it stays.

        Raises:
          UserError: the tokenizer is too large, or did not make the corpus, or the corpus lacks a column.
        """
        other, size = copy.copy(self), vocab_size or self.setting.model.vocab_size
        if tokenizer.size > size:
            raise UserError(
                f"the vocabulary has {tokenizer.size} pieces, the model {size} embeddings; "
                "leave config.model.vocab_size out to take the vocabulary's"
            )
        corpus.check_tokenizer(tokenizer)
        corpus.check_columns(self.needed_columns)
        other.tokenizer, other._facts = tokenizer, TokenFacts.of(tokenizer)
        other._set_vocabulary(size)
        other._mixture = corpus if isinstance(corpus, Mixture) else Mixture.alone(corpus)
        other.heldout_parts = tuple(other._mixture.corpora)
        return other

    def _set_vocabulary(self, size: int) -> None:
        model = dataclasses.replace(self.setting.model, vocab_size=size)
        self.setting = self.setting._replace(model=model)
        self._model = Model(self.network(model), self._parts)
        self.parts = tuple(part if isinstance(part, Part) else part.of_vocabulary(size) for part in self.parts)
        signs = punctuation(self.tokenizer, size)
        self._terms = {name: with_words_alone(term, signs) for name, term in self._terms.items()}
        taught = self.lessons.flops if self.lessons else lambda spec: 0.0
        self.flops_per_row = {kind: self.flops(spec) + taught(spec) for kind, spec in self.batch_specs.items()}

    # ---- To be written in an objective's file ----------------------------------------------------------------------

    @abc.abstractmethod
    def terms(self, config: Any) -> dict[str, Term]:
        """Return the terms of the loss by name; the functions in them read what ``forward`` and ``inputs`` return.

        If the first term is a cross-entropy over the vocabulary, the perplexity is exp(loss), weighted alike.
        """

    def inputs(self, batch: Batch) -> Batch:
        """Return ``batch`` with the features that ``derived`` names added.

        ``__init__`` traces ``inputs`` to find the features that it reads, and keeps these in a batch. So set the
        attributes that it needs before ``super().__init__``, or read ``self.config`` and ``self.pieces``.
        """
        return batch

    def network(self, model: ModelConfig) -> ModelConfig:
        """Return the config with which ``forward`` reads batches; a finished run is loaded with ``model``."""
        return model

    def forward(self, variables: Variables, batch: Batch, rng: RowRng | None) -> dict[str, jax.Array]:
        """Run the model and return its outputs [B, ...] by name; terms, ``outputs`` and fill-mask read them.

        Args:
          batch: the features of rows, with the features that ``inputs`` adds.
          rng: the randomness of dropout and of any draws, by row (``rng.site("mine").bits(shape)``). If None, none.
        """
        if self.lessons:
            taught = variables.frozen[FROZEN]
            return self.lessons.forward(self._model, variables.params, taught, batch, rng)
        return self._model.apply({"params": variables.params}, batch, rng)  # type: ignore[return-value]

    def frozen(self) -> Mapping[str, Any]:
        """Return the arrays that ``forward`` finds in ``variables.frozen``, name -> tree. ``__init__`` calls this."""
        return {name: model.params for name, model in self.setting.models.items()}

    def masking(self, config: MaskingConfig, where: str) -> MaskingConfig:
        """Return how rows are masked if a recipe has ``config`` at the path ``where``."""
        del where
        return config

    def flops(self, spec: BatchSpec) -> float:
        """Return the FLOPs that a train step spends on one row with the features ``spec``, without a teacher's."""
        predicted = spec["masked_positions"].shape[0] if "masked_positions" in spec else 0
        return self.setting.model.train_flops(spec["input_ids"].shape[0], predicted, int("cls_positions" in spec))

    # ---- Checks ----------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name of the objective's file."""
        return catalogue.name_of(type(self).__module__)

    @property
    def pieces(self) -> Sequence[str]:
        """The piece of each embedding of the model; "" where there is none, as before the text is read."""
        known = self.tokenizer.vocab if self.tokenizer else ()
        return [*known, *[""] * (self.setting.model.vocab_size - len(known))]

    def _check_model(self, model: ModelConfig) -> None:
        for role in [part.head for part in self._parts if isinstance(part.head, str)]:
            if not hasattr(encoder_file(model.encoder), role):
                raise UserError(f"encoder {model.encoder!r} has no {role}, which objective {self.name!r} needs")

    def _rows_of(self, kind: str) -> RowsConfig:
        """Return the configuration of a phase's rows; the phase may replace keys of ``config.objective``."""
        where = masks_at = self.setting.where
        if ".members." not in where:
            where, masks_at = f"config.phases.{kind}.objective", f"config.phases.{kind}"
        changes = dict(self.setting.changes.get(kind, {}))
        if "name" in changes:  # then the others are fields of ``self.config``
            changes = {name: changes[name] for name in ROW_KEYS if name in changes}
        of_phase, shared = changes.pop("masking", {}), self.config.masking
        own = Config(**{name: getattr(self.config, name) for name in ROW_KEYS})
        if changes.get("arrangement", own.arrangement) != own.arrangement:  # options belong to one arrangement
            changes = {"arrangement_options": {}} | changes
        merged = configuration.replace(own, changes, where, also=("name",))
        masks_at = f"{masks_at if of_phase else 'config.objective'}.masking"
        masks = self.masking(shared.replaced(of_phase, masks_at) if of_phase else shared, masks_at)
        return RowsConfig(
            self.setting.max_lengths[kind],
            merged.short_row_probability,
            masks,
            merged.packing,
            merged.max_pairs_per_row,
            merged.arrangement or self.arrangement,
            merged.arrangement_options,
            kind=kind,
            columns=self.columns,
        )

    def _heldout_of(self, rows: RowsConfig) -> RowsConfig:
        """Return the configuration of the held-out rows of a phase that trains on ``rows``."""
        masks, where = rows.masking, "config.training.eval_masking"
        if changes := self.setting.heldout_masking:
            masks = self.masking(masks.replaced(changes, where), where)
        return dataclasses.replace(rows, masking=masks, packing="none" if rows.packing == "bucketed" else rows.packing)

    @property
    def units(self) -> tuple[str, ...]:
        """The units of masking in all phases: "piece", "word", or columns of the corpus."""
        return tuple(sorted({one.masking.unit for rows in (self._rows, self._heldout) for one in rows.values()}))

    @property
    def needed_columns(self) -> tuple[str, ...]:
        """The columns of the corpus that rows read, as units of masking or as features."""
        return tuple(dict.fromkeys((*units.columns(self.units), *self.columns)))

    def _with_features(self, rows: RowsConfig) -> RowsConfig:
        """Return ``rows`` with the features that the objective reads.

        Raises ``UserError`` if a needed feature is missing.
        """
        spec = dataclasses.replace(rows, features=rows.possible).batch_spec()
        model = self.setting.model

        def forward(batch: Batch) -> Batch:
            return self.forward(self.given.by_name(self.init(jax.random.key(0), spec)), batch, None)

        own = None if type(self).forward is PretrainingObjective.forward else forward
        heads = {name for part in self.parts for head in heads_of(model, part) for name in head.reads}
        functions = Functions(self.inputs, self.derived, own, self.output_shapes)
        needed = features_read(heads, functions, self._terms, spec) | lanes_read(self.memory, rows, self.setting.model)
        if lacking := sorted(needed - spec.keys()):
            having = arrangements_with(lacking)
            begin = f"objective {self.name!r} needs {', '.join(lacking)}, which the arrangement {rows.arrangement!r}"
            other = f"may be {', '.join(having)}" if having else "has no other with it; what inputs adds is in derived"
            raise UserError(f"{begin} does not have; config.objective.arrangement {other}")
        reads = encoder_file(model.encoder).Encoder.reads
        if unread := [name for name in ("position_ids", "sequence_ids") if name in spec and name not in reads]:
            raise UserError(
                f"encoder {model.encoder!r} does not read {unread[0]}; set config.objective.packing to 'none'"
            )
        if "order_ids" in self.derived and "order_ids" not in reads:
            raise UserError(
                f"objective {self.name!r} says by order_ids who sees whom, and encoder {model.encoder!r} does not read "
                "them; take an encoder of Transformer layers"
            )
        return dataclasses.replace(rows, features=(*ALWAYS, *sorted(needed)))

    def check_tokens(self, tokenizer: Tokenizer) -> None:
        """Raise ``UserError`` if the rows need a token that ``tokenizer`` lacks, such as [MASK]."""
        for rows in (*self._rows.values(), *self._heldout.values()):
            rows.check_tokens(tokenizer, self.setting.where)

    def check_columns(self, columns: Mapping[str, Column]) -> None:
        """Raise ``UserError`` if a column that the corpus is to be built with does not fit; ``columns`` are by name."""

    # ---- The host side ---------------------------------------------------------------------------------------------

    def source(self, split: Literal["train", "eval"], kind: str, phase: int, part: str | None = None) -> RowSource:
        setting, trains = self.setting, split == "train"
        rows = (self._rows if trains else self._heldout)[kind]
        seed = setting.seed if trains or setting.heldout_seed is None else setting.heldout_seed
        shares = (trains and setting.shares.get(kind)) or self._mixture.shares
        of = "train" if trains else "heldout"
        sources: dict[str, RowSource] = {
            name: SequenceRows(rows, corpus.split(of), self._facts, seed=seed, phase=phase, directory=corpus.folder)
            for name, corpus in self._mixture.corpora.items()
            if (shares[name] if part is None else part == name)
        }
        if len(sources) == 1:
            return next(iter(sources.values()))
        key = random.key(self._mixture.fingerprint, seed, phase, "mixture")
        return MixedRows(list(sources.values()), [shares[n] for n in sources], key)

    def summary(self, sums: dict[str, Sum]) -> dict[str, float]:
        means = super().summary(sums)
        first = f"{next(iter(self._terms))}_loss"
        if first not in means or not self._has_perplexity:
            return means
        return means | {"perplexity": math.exp(min(means[first], 80.0))}

    @functools.cached_property
    def _has_perplexity(self) -> bool:
        """Whether the first term is a cross-entropy over the vocabulary."""
        loss = next(iter(self._terms.values())).loss
        if not isinstance(loss, CrossEntropy):
            return False
        return loss == MLM.loss or self.output_shapes()[loss.logits].shape[-1] == self.setting.model.vocab_size

    def finish(self, part: str, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        del part, outputs
        return {}

    # ---- The device side -------------------------------------------------------------------------------------------

    def init(self, rng: Any, spec: BatchSpec | None = None) -> Variables:
        spec = spec or next(iter(self.batch_specs.values()))
        batch = self.inputs({name: jnp.zeros((1, *feature.shape), feature.dtype) for name, feature in spec.items()})
        beside = {part.name: part.init(rng, batch) for part in self.parts if isinstance(part, EncoderPart)}
        return Variables({**self._model.init(rng, batch)["params"], **beside}, self.given.arrays)

    def loss(self, variables: Variables, batch: Batch, rng: Any) -> Losses:
        batch = self.inputs(batch)
        outputs = self.forward(self.given.by_name(variables), batch, rng)
        losses, metrics, _ = measure_terms(self._terms, outputs, batch)
        return Losses(losses, metrics | token_metrics(batch), {n: outputs[n] for n in self.memory if n in outputs})

    def outputs(self, variables: Variables, batch: Batch) -> dict[str, jax.Array]:
        return self.forward(self.given.by_name(variables), self.inputs(batch), None)

    def output_shapes(self, spec: BatchSpec | None = None) -> dict[str, jax.ShapeDtypeStruct]:
        """Return the shape and dtype of each output for two rows of ``spec``, from a trace; nothing is computed."""
        spec = spec or next(iter(self.batch_specs.values()))
        rows = {name: jax.ShapeDtypeStruct((2, *one.shape), one.dtype) for name, one in spec.items()}
        return jax.eval_shape(lambda batch: self.outputs(self.init(jax.random.key(0), spec), batch), rows)  # type: ignore[no-any-return]

    # ---- Baselines: scores of simple models without a neural network ------------------------------------------------

    def baselines(self, kind: str, num_rows: int, part: str | None = None) -> dict[str, float]:
        """Return baselines, by name, computed on the rows of the evaluation, or on the rows of one held-out part.

        They are cross-entropies of n-gram models, in nats per masked token, and the share of the most common label. The
        n-gram models of a part have counted the text of that part alone.
        """
        rows, baselines = self.heldout_rows(kind, num_rows, part), dict[str, float]()
        if any(term.baseline == "cloze" for term in self._terms.values()):
            corpora = [corpus for name, corpus in self._mixture.corpora.items() if part in (None, name)]
            tokens = ngram_models.read_tokens([corpus.split("train") for corpus in corpora])
            baselines = ngram_models.cross_entropies(self.cloze(rows), tokens, self.vocab_size)
        return baselines | majority_rates(self.label_counts(rows))

    def cloze(self, rows: dict[str, np.ndarray]) -> ngram_models.Cloze:
        """Return the masked tokens of a batch of rows, with the neighbours that the model sees."""
        return ngram_models.cloze_of_rows(rows, self.special_ids)

    def label_counts(self, rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the sum of the weights of each label of each classification among ``rows``, [labels] by name."""
        terms = {name: term for name, term in self._terms.items() if term.baseline == "majority"}
        rows = jax.device_get(jax.jit(self.inputs)(rows)) if terms and self.derived else rows
        return count_labels(terms, rows, self.vocab_size, catalogue.display_name(self.name))

    @property
    def special_ids(self) -> tuple[int, ...]:
        """The ids of padding, ``[CLS]`` and ``[SEP]``."""
        return self._facts.pad, self._facts.cls, self._facts.sep

    @property
    def vocab_size(self) -> int:
        """The number of pieces of the tokenizer."""
        return self._facts.vocab_size

    def heldout_rows(self, kind: str, num_rows: int, part: str | None = None) -> dict[str, np.ndarray]:
        """Return the rows of an evaluation: the first ``num_rows`` of each held-out part, one part after another."""
        parts = []
        for name in self.heldout_parts if part is None else (part,):
            source = self.source("eval", kind, 0, name).for_batches(self.setting.batch_sizes.get(kind, 1))
            indices = np.arange(min(num_rows, source.rows_per_epoch))
            parts.append(source.rows(np.zeros_like(indices), indices))
        return {name: np.concatenate([rows[name] for rows in parts]) for name in parts[0]}
