"""Capitalisation: of each token, whether its text had a capital letter (ERNIE 2.0; Sun et al. 2020).

The model reads text in lower case. The labels are the column ``capitals`` of the corpus, which the annotator of that
name computes from the text as it was:

    config.corpus.columns = {"capitals": {"annotator": "capitals"}}

The paper asks whether a word is capitalised, and no code is public. Here each piece of a word has a label of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Self

import jax.numpy as jnp
import numpy as np

from bert_jax.corpora.annotators.capitals import CAPITAL
from bert_jax.corpora.mixture import Mixture
from bert_jax.corpora.store import Corpus, CorpusSplit
from bert_jax.errors import UserError
from bert_jax.models.heads import Classifier
from bert_jax.models.model import Part
from bert_jax.objectives import task_ids
from bert_jax.objectives.base import Term, prediction
from bert_jax.records import Batch
from bert_jax.text.tokenizer import Tokenizer

COLUMN = "capitals"
HEAD = Part.of("capitals_head", Classifier, num_outputs=2, vectors="sequence", logits="capital_logits")
_SPANS, _SPAN = 64, 4_096  # capitals are looked for in so many spans of so many tokens
_LEAST = 1e-3  # of the tokens; text in a script with capitals has more


@dataclasses.dataclass(frozen=True)
class Config(task_ids.Config):
    """The keys of ``config.objective``, besides its name."""

    task_id: int = 1  # the row of the encoder's task embeddings, if config.model.task_type_vocab_size is not 0


class Objective(task_ids.WithTaskId):
    """Says of each token whether its text had a capital letter; the loss is the mean over all tokens of text.

    No token is masked.
    """

    arrangement = "sentences"
    parts = (HEAD,)
    columns = (COLUMN,)
    derived = ("capital_labels", "capital_weights")
    titles: ClassVar[Mapping[str, str]] = {
        "capitals_loss": "Capital-letter loss, nats",
        "capitals_accuracy": "Capital-letter accuracy",
    }

    def with_text(self, corpus: Corpus | Mixture, tokenizer: Tokenizer, vocab_size: int | None = None) -> Self:
        """See ``PretrainingObjective.with_text``. The vocabulary has to be in lower case, and the text not."""
        if not tokenizer.lowercase:
            raise UserError(
                "the vocabulary keeps capitals, so that each piece says what the objective 'capitals' asks; set "
                "config.vocab.lowercase to True, or leave the objective out"
            )
        other = super().with_text(corpus, tokenizer, vocab_size)
        splits = [one.split("train") for one in other._mixture.corpora.values()]
        if (share := max(map(_share_of_capitals, splits))) < _LEAST:
            raise UserError(
                f"{share:.2%} of the tokens of the text have a capital letter, which the objective 'capitals' learns "
                f"to find, and {_LEAST:.1%} or more is needed; take a text that has its capitals, or leave the "
                "objective out"
            )
        return other

    def terms(self, config: Config) -> dict[str, Term]:
        return {"capitals": prediction("capital_logits", "capital_labels", "capital_weights")}

    def inputs(self, batch: Batch) -> Batch:
        """Return ``batch`` with the labels and weights [B, L]; a position without text has the weight 0."""
        values = batch[COLUMN]
        weights = (values > 0).astype(jnp.float32) * batch["row_weights"][:, None]
        labels = (values == CAPITAL).astype(jnp.int32)
        return super().inputs({**batch, "capital_labels": labels, "capital_weights": weights})


def _share_of_capitals(split: CorpusSplit) -> float:
    """Return the share of the pieces that are capitals, in spans of equal distance (all of a split that is short)."""
    starts = np.unique(np.linspace(0, max(split.num_tokens - _SPAN, 0), _SPANS).astype(np.int64))
    lengths = np.minimum(_SPAN, split.num_tokens - starts)
    return float(np.mean(split.read(starts, lengths, COLUMN) == CAPITAL)) if lengths.any() else 0.0
