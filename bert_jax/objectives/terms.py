"""The terms of an objective's loss: labels, weights and baseline of each, and what is measured of it."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from bert_jax.models.losses import cross_entropy
from bert_jax.records import Batch, Sum
from bert_jax.text.tokenizer import Tokenizer


class Term(NamedTuple):
    """One cross-entropy term of a loss, averaged over the whole global batch.

    It also defines the term's number of targets, metrics ``<term>_loss`` and ``<term>_accuracy``, and a baseline.

    Attributes:
      logits: the name of an output [B, ..., V] of the model.
      labels, weights: names of features [B, ...] of a batch, which ``PretrainingObjective.inputs`` may have added. The
        loss divides by the sum of the weights (at least 1) of the global batch, so they need not be normalised.
      weight: the weight of the term in the loss. If 0, the term is measured but does not train the model.
      baseline: "cloze" compares with n-gram models of unweighted masked tokens, "majority" with the most common label.
    """

    logits: str
    labels: str
    weights: str
    weight: float = 1.0
    baseline: Literal["cloze", "majority", "none"] = "majority"


MLM = Term("mlm_logits", "masked_labels", "masked_weights", baseline="cloze")


def punctuation(tokenizer: Tokenizer | None, size: int) -> npt.NDArray[np.bool_]:
    """Return whether each of ``size`` pieces is punctuation alone (Unicode categories P*); all False without tokenizer.

    Special tokens are not.
    """
    signs_alone = np.zeros(size, np.bool_)
    for i, (text, continues) in enumerate(tokenizer.surfaces[:size] if tokenizer else ()):
        signs = text.strip() if continues is not None else ""
        signs_alone[i] = bool(signs) and all(unicodedata.category(sign).startswith("P") for sign in signs)
    return signs_alone


def measure(
    term: Term, outputs: Mapping[str, jax.Array], batch: Batch, is_punctuation: npt.NDArray[np.bool_]
) -> tuple[Sum, dict[str, Sum]]:
    """Return the loss of a term and its metrics by name.

    Args:
      is_punctuation: [V] whether a piece of the vocabulary is punctuation alone. A term that is compared with n-gram
        models has the accuracy without such labels too: they are easy, and many in some languages.
    """
    logits, labels, weights = outputs[term.logits], batch[term.labels], batch[term.weights]
    loss, hits = cross_entropy(logits, labels, weights)
    metrics = {"loss": loss, "accuracy": hits}
    if term.baseline == "cloze":
        words = jnp.where(jnp.asarray(is_punctuation)[labels], 0.0, weights)
        metrics["accuracy_no_punctuation"] = cross_entropy(logits, labels, words)[1]
    return loss, metrics
