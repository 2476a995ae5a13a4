"""Masked language modelling and next-sentence prediction (Devlin et al. 2019, section 3.1)."""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import configuration
from bert_jax.corpora.mixture import Mixture
from bert_jax.corpora.store import Corpus
from bert_jax.errors import UserError
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.config import ModelConfig
from bert_jax.models.flops import train_flops_per_row
from bert_jax.objectives.losses import cross_entropy
from bert_jax.records import Batch, BatchSpec, Sum
from bert_jax.rows import baselines, random
from bert_jax.rows.masking import MaskingConfig, TokenFacts
from bert_jax.rows.mixture import MixedRows
from bert_jax.rows.plan import SPECIAL_TOKENS_PER_ROW
from bert_jax.rows.rows_config import Packing, RowsConfig
from bert_jax.rows.sentence_pairs import SentencePairRows
from bert_jax.task import Losses, RowSource, Variables
from bert_jax.text.tokenizer import Tokenizer

NO_CHANGES: Mapping[str, Mapping[str, Any]] = types.MappingProxyType({})


@dataclasses.dataclass(frozen=True)
class Config:
    """Keys of ``config.objective``, beside its name."""

    short_row_probability: float = 0.1
    masking: MaskingConfig = MaskingConfig()
    next_sentence_weight: float = 1.0
    packing: Packing = "none"
    max_pairs_per_row: int | None = None  # of packed rows; None: one for 16 positions, 2 to 16

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
    config: Config, max_lengths: Mapping[str, int], masking: Mapping[str, Mapping[str, Any]] = NO_CHANGES
) -> dict[str, BatchSpec]:
    """``Objective.batch_specs``, known before there is a corpus.

    Raises:
      UserError: a phase's row length or masking makes no sense.
    """
    specs: dict[str, BatchSpec] = {}
    for kind, length in max_lengths.items():
        specs |= config.rows(length, masking.get(kind, {}), kind).batch_specs(kind)
    return specs


class Objective:
    """The loss is the mean over masked positions plus the mean over pairs, each over the whole global batch."""

    row_order: Literal["shuffled", "stream"] = "shuffled"
    gathered_outputs: tuple[str, ...] = ()

    def __init__(
        self,
        config: Config,
        corpus: Corpus | Mixture,
        tokenizer: Tokenizer,
        model: ModelConfig,
        max_lengths: Mapping[str, int],
        seed: int,
        masking: Mapping[str, Mapping[str, Any]] = NO_CHANGES,
    ):
        """``max_lengths``: kind of batch, one a phase -> positions of a row. ``masking``: by kind, keys of
        ``config.masking`` that differ.

        Raises:
          UserError: a row is longer than the model's positions, or the vocabulary larger than its embedding.
        """
        model.check_lengths(max_lengths)
        if tokenizer.size > model.vocab_size:
            raise UserError(
                f"the vocabulary has {tokenizer.size} pieces, the model {model.vocab_size} embeddings; "
                "leave model.vocab_size out to take the vocabulary's"
            )
        corpus.check_tokenizer(tokenizer)
        self.model_config = model
        self.loss_weights = {"mlm": 1.0, "nsp": config.next_sentence_weight}
        self._model = BertForPreTraining(model)
        self._corpora = corpus if isinstance(corpus, Mixture) else Mixture.alone(corpus)
        self.heldout_parts = tuple(self._corpora.parts)
        self._facts, self._seed = TokenFacts.of(tokenizer), seed
        self._rows = {kind: config.rows(n, masking.get(kind, {}), kind) for kind, n in max_lengths.items()}
        self.batch_specs = batch_specs(config, max_lengths, masking)
        self.flops_per_row = {
            kind: train_flops_per_row(model, spec["input_ids"].shape[0], spec["masked_positions"].shape[0])
            for kind, spec in self.batch_specs.items()
        }

    def source(self, split: Literal["train", "eval"], kind: str, phase: int, part: str | None = None) -> RowSource:
        rows = self._rows[kind]
        if split == "eval" and rows.packing == "bucketed":
            rows = dataclasses.replace(rows, packing="none")
        sources: dict[str, RowSource] = {
            name: SentencePairRows(
                rows,
                corpus.split("train" if split == "train" else "heldout"),
                self._facts,
                seed=self._seed,
                phase=phase,
                kind=kind,
                directory=corpus.folder,
            )
            for name, corpus in self._corpora.parts.items()
            if part in (None, name)
        }
        if len(sources) == 1:
            return next(iter(sources.values()))
        key = random.key(self._corpora.fingerprint, self._seed, phase, "mixture")
        return MixedRows(list(sources.values()), list(self._corpora.shares.values()), key)

    def init(self, rng: Any) -> Variables:
        spec = next(iter(self.batch_specs.values()))
        batch = {name: jnp.zeros((1, *feature.shape), feature.dtype) for name, feature in spec.items()}
        return Variables(self._model.init(rng, **_model_inputs(batch))["params"], {})

    def init_carry(self, num_rows: int) -> tuple[()]:
        del num_rows
        return ()

    def counts(self, batch: Batch) -> dict[str, jax.Array]:
        return {"mlm": jnp.sum(batch["masked_weights"]), "nsp": jnp.sum(batch["next_sentence_weights"])}

    def loss(self, variables: Variables, batch: Batch, rng: Any, carry: Any) -> Losses:
        logits = self._apply(variables, batch, rng)
        mlm, mlm_accuracy = cross_entropy(logits["mlm_logits"], batch["masked_labels"], batch["masked_weights"])
        nsp, nsp_accuracy = cross_entropy(
            logits["nsp_logits"], batch["next_sentence_labels"], batch["next_sentence_weights"]
        )
        tokens = jnp.sum(batch["attention_mask"]).astype(jnp.float32)
        metrics = {
            "mlm_loss": mlm,
            "mlm_accuracy": mlm_accuracy,
            "nsp_loss": nsp,
            "nsp_accuracy": nsp_accuracy,
            "tokens": Sum(tokens, jnp.ones_like(tokens)),
        }
        return Losses({"mlm": mlm, "nsp": nsp}, metrics, carry)

    def outputs(self, variables: Variables, batch: Batch, carry: Any) -> dict[str, jax.Array]:
        del carry
        return self._apply(variables, batch, None)

    def _apply(self, variables: Variables, batch: Batch, rng: Any) -> dict[str, jax.Array]:
        return self._model.apply({"params": variables.params}, **_model_inputs(batch), rng=rng)  # type: ignore[return-value]

    def summary(self, sums: dict[str, Sum]) -> dict[str, float]:
        means = {name: float(s.value) / max(float(s.count), 1e-9) for name, s in sums.items()}
        return means | {"perplexity": math.exp(min(means["mlm_loss"], 80.0))}

    def baselines(self, kind: str, num_rows: int) -> dict[str, float]:
        """Cross-entropies in nats a masked token, and the NSP accuracy of always giving the commoner label, all on the
        evaluation's own rows."""
        parts = []
        for part in self.heldout_parts:
            source = self.source("eval", kind, 0, part)
            indices = np.arange(min(num_rows, source.rows_per_epoch))
            parts.append(source.rows(np.zeros_like(indices), indices))
        rows = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        tokens = baselines.read_tokens([corpus.split("train") for corpus in self._corpora.parts.values()])
        cloze = baselines.cloze_of_rows(rows, (self._facts.pad, self._facts.cls, self._facts.sep))
        weights = rows["next_sentence_weights"]
        random_rate = float((rows["next_sentence_labels"] * weights).sum() / weights.sum())
        return {
            "unigram_cross_entropy": baselines.unigram_cross_entropy(tokens, cloze.label, self._facts.vocab_size),
            "trigram_cloze_cross_entropy": baselines.TrigramCloze(tokens, self._facts.vocab_size).cross_entropy(cloze),
            "nsp_majority_rate": max(random_rate, 1 - random_rate),
        }

    def finish(self, part: str, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        del part, outputs
        return {}


def _model_inputs(batch: Batch) -> dict[str, Any]:
    names = ("input_ids", "token_type_ids", "attention_mask", "masked_positions", "cls_positions")
    packed = [name for name in ("position_ids", "sequence_ids") if name in batch]
    return {name: batch[name] for name in (*names, *packed)}
