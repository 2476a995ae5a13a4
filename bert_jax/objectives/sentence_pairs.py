"""What the objectives on rows of sentence pairs share: their rows, and all of the contract that knows no loss."""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import configuration
from bert_jax.corpora.mixture import Mixture
from bert_jax.corpora.store import Corpus
from bert_jax.errors import UserError
from bert_jax.models.config import ModelConfig
from bert_jax.models.flops import train_flops_per_row
from bert_jax.models.model import Model, Part
from bert_jax.records import Batch, BatchSpec, Sum
from bert_jax.rows import ngram_models, random
from bert_jax.rows.masking import MaskingConfig, TokenFacts
from bert_jax.rows.mixture import MixedRows
from bert_jax.rows.plan import SPECIAL_TOKENS_PER_ROW
from bert_jax.rows.rows_config import Packing, RowsConfig
from bert_jax.rows.selection import SelectedFeatures
from bert_jax.rows.sentence_pairs import SentencePairRows
from bert_jax.task import RowSource, Variables
from bert_jax.text.tokenizer import Tokenizer

Masking = Mapping[str, Mapping[str, Any]]  # kind of batch -> keys of the objective's masking that differ
NO_CHANGES: Masking = types.MappingProxyType({})
NEXT_SENTENCE = ("cls_positions", "next_sentence_labels", "next_sentence_weights")
MASKED = ("masked_positions", "masked_labels", "masked_weights")


@dataclasses.dataclass(frozen=True)
class PairsConfig:
    """Keys of ``config.objective``, beside its name, that every objective on pairs has."""

    short_row_probability: float = 0.1
    masking: MaskingConfig = MaskingConfig()
    packing: Packing = "none"
    max_pairs_per_row: int | None = None  # of packed rows; None: one for 16 positions, 2 to 16

    left_out: ClassVar[tuple[str, ...]] = ()  # features of a row that the objective does not read

    def rows(self, max_length: int, masking: Mapping[str, Any], kind: str) -> RowsConfig:
        """The rows of a phase, whose ``masking`` replaces keys of the objective's."""
        if max_length < SPECIAL_TOKENS_PER_ROW + 2:
            raise UserError(
                f"config.phases.{kind}.max_length is {max_length}; a pair with its special tokens needs at least"
                f" {SPECIAL_TOKENS_PER_ROW + 2}"
            )
        own = configuration.build(
            MaskingConfig, dataclasses.asdict(self.masking) | dict(masking), f"config.phases.{kind}.masking"
        )
        return RowsConfig(max_length, self.short_row_probability, own, self.packing, self.max_pairs_per_row)


def batch_specs(
    config: PairsConfig, max_lengths: Mapping[str, int], masking: Masking = NO_CHANGES
) -> dict[str, BatchSpec]:
    """``Objective.batch_specs``, known before there is a corpus.

    Raises:
      UserError: a phase's row length or masking makes no sense.
    """
    specs: dict[str, BatchSpec] = {}
    for kind, length in max_lengths.items():
        specs |= config.rows(length, masking.get(kind, {}), kind).batch_specs(kind)
    return {
        kind: {name: feature for name, feature in spec.items() if name not in config.left_out}
        for kind, spec in specs.items()
    }


class PairObjective:
    """The parts of ``task.Task`` that do not depend on the loss. A subclass has ``counts``, ``loss`` and ``baselines``,
    and says which parts stand on the encoder."""

    parts: ClassVar[tuple[Part, ...]]  # of the model, above the encoder
    architecture: ClassVar[str]  # the class of transformers that has the same parameters
    headline: ClassVar[str]  # the loss whose exponential is the perplexity

    gathered_outputs: tuple[str, ...] = ()
    loss_weights: dict[str, float]
    dtype: str
    heldout_parts: tuple[str, ...] = ("",)

    def __init__(
        self,
        config: PairsConfig,
        corpus: Corpus | Mixture | None,
        tokenizer: Tokenizer | None,
        model: ModelConfig,
        max_lengths: Mapping[str, int],
        seed: int,
        masking: Masking = NO_CHANGES,
        heldout_seed: int | None = None,
    ):
        """``max_lengths``: kind of batch, one a phase -> positions of a row. ``masking``: by kind, keys of
        ``config.masking`` that differ. ``heldout_seed``: of the held-out rows; None: ``seed``. Without ``corpus``
        and ``tokenizer`` it has the device side alone: its step can be compiled, and ``source`` and ``baselines`` must
        not be asked for.

        Raises:
          UserError: a row is longer than the model's positions, or the vocabulary larger than its embedding.
        """
        self.check_model(model)
        model.check_lengths(max_lengths)
        self.model_config, self.dtype = model, model.dtype
        self._model = Model(model, self.parts)
        self._seeds = {"train": seed, "eval": seed if heldout_seed is None else heldout_seed}
        if corpus is not None and tokenizer is not None:
            self._read(corpus, tokenizer)
        self._rows = {kind: config.rows(n, masking.get(kind, {}), kind) for kind, n in max_lengths.items()}
        self.batch_specs = batch_specs(config, max_lengths, masking)
        self.flops_per_row = {kind: self.flops(spec) for kind, spec in self.batch_specs.items()}

    def _read(self, corpus: Corpus | Mixture, tokenizer: Tokenizer) -> None:
        """The host side."""
        if tokenizer.size > self.model_config.vocab_size:
            raise UserError(
                f"the vocabulary has {tokenizer.size} pieces, the model {self.model_config.vocab_size} embeddings; "
                "leave model.vocab_size out to take the vocabulary's"
            )
        corpus.check_tokenizer(tokenizer)
        self._corpora = corpus if isinstance(corpus, Mixture) else Mixture.alone(corpus)
        self.heldout_parts = tuple(self._corpora.parts)
        self._facts = TokenFacts.of(tokenizer)

    @classmethod
    def check_model(cls, model: ModelConfig) -> None:
        """Raises ``UserError`` if the objective cannot train such a model."""
        if model.causal:
            raise UserError(
                "config.model.attention is 'causal'; this objective reads both sides of a token: set"
                " it to 'bidirectional', or config.objective.name to 'ltr'"
            )

    def flops(self, spec: BatchSpec) -> float:
        """Of a row of a kind, in a train step."""
        pooled = int("cls_positions" in spec)
        length, masked = spec["input_ids"].shape[0], spec["masked_positions"].shape[0]
        return train_flops_per_row(self.model_config, length, masked, pooled)

    def inputs(self, batch: Batch) -> Batch:
        """Return ``batch`` with what the model reads beside its features."""
        return batch

    def source(self, split: Literal["train", "eval"], kind: str, phase: int, part: str | None = None) -> RowSource:
        rows, names = self._rows[kind], tuple(self.batch_specs[kind])
        if split == "eval" and rows.packing == "bucketed":
            rows = dataclasses.replace(rows, packing="none")
        sources: dict[str, RowSource] = {
            name: SentencePairRows(
                rows,
                corpus.split("train" if split == "train" else "heldout"),
                self._facts,
                seed=self._seeds[split],
                phase=phase,
                kind=kind,
                directory=corpus.folder,
            )
            for name, corpus in self._corpora.parts.items()
            if part in (None, name)
        }
        if len(sources) == 1:
            return SelectedFeatures(next(iter(sources.values())), names)
        key = random.key(self._corpora.fingerprint, self._seeds[split], phase, "mixture")
        return SelectedFeatures(MixedRows(list(sources.values()), list(self._corpora.shares.values()), key), names)

    def init(self, rng: Any) -> Variables:
        spec = next(iter(self.batch_specs.values()))
        batch = {name: jnp.zeros((1, *feature.shape), feature.dtype) for name, feature in spec.items()}
        return Variables(self._model.init(rng, self.inputs(batch))["params"], {})

    def init_carry(self, num_rows: int) -> tuple[()]:
        del num_rows
        return ()

    def outputs(self, variables: Variables, batch: Batch, carry: Any) -> dict[str, jax.Array]:
        del carry
        return self.apply(variables, batch, None)

    def apply(self, variables: Variables, batch: Batch, rng: Any) -> dict[str, jax.Array]:
        return self._model.apply({"params": variables.params}, self.inputs(batch), rng)  # type: ignore[return-value]

    def summary(self, sums: dict[str, Sum]) -> dict[str, float]:
        means = {name: float(s.value) / max(float(s.count), 1e-9) for name, s in sums.items()}
        return means | {"perplexity": math.exp(min(means[self.headline], 80.0))}

    def finish(self, part: str, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        del part, outputs
        return {}

    # ---- For baselines --------------------------------------------------------------------------------------------

    @property
    def special_ids(self) -> tuple[int, ...]:
        """Padding, ``[CLS]`` and ``[SEP]``."""
        return self._facts.pad, self._facts.cls, self._facts.sep

    @property
    def vocab_size(self) -> int:
        """Pieces of the tokenizer."""
        return self._facts.vocab_size

    def heldout_rows(self, kind: str, num_rows: int) -> dict[str, np.ndarray]:
        """Those of an evaluation: the first ``num_rows`` of each part."""
        parts = []
        for part in self.heldout_parts:
            source = self.source("eval", kind, 0, part)
            indices = np.arange(min(num_rows, source.rows_per_epoch))
            parts.append(source.rows(np.zeros_like(indices), indices))
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def training_tokens(self) -> np.ndarray:
        """int64 tokens of the training text, as many as baselines count."""
        return ngram_models.read_tokens([corpus.split("train") for corpus in self._corpora.parts.values()])

    def cloze_baselines(self, rows: dict[str, np.ndarray]) -> dict[str, float]:
        """Cross-entropies in nats a masked token of ``rows``."""
        tokens, cloze = self.training_tokens(), ngram_models.cloze_of_rows(rows, self.special_ids)
        return {
            "unigram_cross_entropy": ngram_models.unigram_cross_entropy(tokens, cloze.label, self.vocab_size),
            "trigram_cloze_cross_entropy": ngram_models.TrigramCloze(tokens, self.vocab_size).cross_entropy(cloze),
        }
