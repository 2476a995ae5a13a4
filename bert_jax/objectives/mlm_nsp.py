"""Masked language modelling and next-sentence prediction (Devlin et al. 2019, section 3.1)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.corpora.store import Corpus
from bert_jax.errors import UserError
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.config import ModelConfig
from bert_jax.models.flops import train_flops_per_row
from bert_jax.objectives.losses import cross_entropy
from bert_jax.records import Batch, BatchSpec, Sum
from bert_jax.rows import baselines
from bert_jax.rows.masking import MaskingConfig, TokenFacts
from bert_jax.rows.plan import SPECIAL_TOKENS_PER_ROW
from bert_jax.rows.sentence_pairs import RowsConfig, SentencePairRows
from bert_jax.task import Losses, Variables
from bert_jax.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class Config:
    """Keys of ``config.objective``, beside its name."""

    short_row_probability: float = 0.1
    masking: MaskingConfig = MaskingConfig()
    next_sentence_weight: float = 1.0

    def check(self, max_lengths: Mapping[str, int]) -> None:
        """Raise ``UserError`` where a pair cannot stand in a row of one of the phases."""
        for phase, length in max_lengths.items():
            if length < SPECIAL_TOKENS_PER_ROW + 2:
                raise UserError(
                    f"config.phases.{phase}.max_length is {length}; a pair with its special tokens needs at least"
                    f" {SPECIAL_TOKENS_PER_ROW + 2}"
                )


class Objective:
    """The loss is the mean over masked positions plus the mean over pairs, each over the whole global batch."""

    row_order: Literal["shuffled", "stream"] = "shuffled"

    def __init__(
        self,
        config: Config,
        corpus: Corpus,
        tokenizer: Tokenizer,
        model: ModelConfig,
        max_lengths: Mapping[str, int],
        seed: int,
    ):
        """``max_lengths``: kind of batch -> positions of a row.

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
        self._corpus, self._facts, self._seed = corpus, TokenFacts.of(tokenizer), seed
        self._rows = {
            kind: RowsConfig(n, config.short_row_probability, config.masking) for kind, n in max_lengths.items()
        }
        self.batch_specs: dict[str, BatchSpec] = {kind: rows.batch_spec() for kind, rows in self._rows.items()}
        self.flops_per_row = {
            kind: train_flops_per_row(model, rows.max_length, self.batch_specs[kind]["masked_positions"].shape[0])
            for kind, rows in self._rows.items()
        }

    def source(self, split: Literal["train", "eval"], kind: str, phase: int) -> SentencePairRows:
        corpus_split = self._corpus.split("train" if split == "train" else "heldout")
        return SentencePairRows(
            self._rows[kind], corpus_split, self._facts, seed=self._seed, phase=phase, directory=self._corpus.folder
        )

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
        source = self.source("eval", kind, 0)
        indices = np.arange(min(num_rows, source.rows_per_epoch))
        rows = source.rows(np.zeros_like(indices), indices)
        tokens = baselines.read_tokens(self._corpus.split("train"))
        cloze = baselines.cloze_of_rows(rows, (self._facts.pad, self._facts.cls, self._facts.sep))
        random_rate = float(rows["next_sentence_labels"].mean())
        return {
            "unigram_cross_entropy": baselines.unigram_cross_entropy(tokens, cloze.label, self._facts.vocab_size),
            "trigram_cloze_cross_entropy": baselines.TrigramCloze(tokens, self._facts.vocab_size).cross_entropy(cloze),
            "nsp_majority_rate": max(random_rate, 1 - random_rate),
        }

    def finish(self, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        del outputs
        return {}


def _model_inputs(batch: Batch) -> dict[str, Any]:
    names = ("input_ids", "token_type_ids", "attention_mask", "masked_positions", "cls_positions")
    return {name: batch[name] for name in names}
