"""The masked-LM term, what terms read and must be, and the accuracy of a term without punctuation."""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from bert_jax.errors import UserError
from bert_jax.losses.cross_entropy import CrossEntropy, OfLabels, cross_entropy, prediction
from bert_jax.records import Batch, Sum
from bert_jax.task import Measure, Term, measures
from bert_jax.text.tokenizer import Tokenizer

MLM = prediction("mlm_logits", "masked_labels", "masked_weights", baseline="cloze")
MLM_TITLES = {
    "mlm_loss": "Masked-LM loss, nats",
    "mlm_accuracy": "Masked-LM accuracy",
    "mlm_accuracy_no_punctuation": "Masked-LM accuracy without punctuation",
}
RATE = "_majority_rate"  # ends the name of a baseline


def majority_rates(counts: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Return the share of the most common label of each classification, by the name of its baseline."""
    return {f"{name}{RATE}": float(of.max() / of.sum()) for name, of in counts.items()}


def count_labels(
    terms: Mapping[str, Term], rows: Mapping[str, np.ndarray], size: int, objective: str
) -> dict[str, np.ndarray]:
    """Return the sum of the weights of each label in ``rows``, by the name of its term; [``size`` or more].

    Raises ``UserError`` for a label below 0.
    """
    counts = {}
    for name, term in terms.items():
        loss: Any = term.loss
        labels, weights = rows[loss.labels].ravel(), rows[loss.weights].ravel()
        if labels.size and labels.min() < 0:
            raise UserError(
                f"{objective}: {loss.labels} of the term {name!r} has the label {labels.min()}; labels are 0 or more,"
                " and what does not count has the weight 0"
            )
        counts[name] = np.bincount(labels, weights, size)
    return counts


def check_meanings(terms: Mapping[str, Mapping[str, Term]]) -> None:
    """Check that a metric means the same in every kind of batch that has it, since its values are averaged.

    Two functions mean the same if they are equal, or are made by the same lines of a file.

    Args:
      terms: kind of batch -> its terms.

    Raises:
      UserError: two kinds measure different things under one name.
    """
    known: dict[str, tuple[str, Any]] = {}
    for kind, of_kind in terms.items():
        for metric, function in measures(of_kind).items():
            first, meaning = known.setdefault(metric, (kind, _meaning(function)))
            if meaning != _meaning(function):
                raise UserError(
                    f"the metric {metric!r} would mean two things: {first} and {kind} each have a term of that name, "
                    "with different functions; give one of the terms, or measures, another name"
                )


def _meaning(function: Any) -> Any:
    if isinstance(function, functools.partial):
        return _meaning(function.func), function.args, sorted(function.keywords.items())
    return getattr(function, "__code__", function)


def punctuation(tokenizer: Tokenizer | None, size: int) -> npt.NDArray[np.bool_]:
    """Return whether each of ``size`` pieces is punctuation alone (Unicode categories P*); all False without tokenizer.

    Special tokens are not punctuation.
    """
    signs_alone = np.zeros(size, np.bool_)
    for i, (text, continues) in enumerate(tokenizer.surfaces[:size] if tokenizer else ()):
        signs = text.strip() if continues is not None else ""
        signs_alone[i] = bool(signs) and all(unicodedata.category(sign).startswith("P") for sign in signs)
    return signs_alone


def with_words_alone(term: Term, is_punctuation: npt.NDArray[np.bool_]) -> Term:
    """Return ``term`` with the measure ``accuracy_no_punctuation``, if it is compared with n-gram models.

    Labels that are punctuation alone ([V], by piece) are easy, and many in some languages.
    """
    loss = term.loss
    if term.baseline != "cloze" or not isinstance(loss, CrossEntropy):
        return term

    def accuracy(outputs: Mapping[str, jax.Array], batch: Batch) -> Sum:
        logits, labels, weights = loss.read(outputs, batch)
        return cross_entropy(logits, labels, jnp.where(jnp.asarray(is_punctuation)[labels], 0.0, weights))[1]

    return term._replace(measures={**term.measures, "accuracy_no_punctuation": accuracy})


def check_terms(terms: Mapping[str, Term], objective: str) -> None:
    """Raise ``UserError`` if a loss is no function, or "majority" has no labels to count."""
    for name, term in terms.items():
        if not callable(term.loss):
            raise UserError(
                f"the loss of the term {name!r} of {objective} is {term.loss!r}; a function of outputs and batch is"
                " needed, and prediction(logits, labels, weights) returns a term of names"
            )
        if term.baseline == "majority" and not isinstance(term.loss, CrossEntropy):
            raise UserError(
                f"the baseline of the term {name!r} of {objective} is 'majority', which counts the labels of a"
                " CrossEntropy; its loss is another function, so leave the baseline out"
            )


def names_and_functions(terms: Mapping[str, Term]) -> tuple[set[str], list[Measure]]:
    """Return the names of the labels and weights that terms read, and the functions that name no labels and weights."""
    functions: list[Any] = [one for term in terms.values() for one in (term.loss, *term.measures.values())]
    names = {name for one in functions if isinstance(one, OfLabels) for name in (one.labels, one.weights)}
    return names, [one for one in functions if not isinstance(one, OfLabels)]


def values(functions: Sequence[Measure], shapes: Mapping[str, jax.ShapeDtypeStruct], batch: Batch) -> Batch:
    """Return what ``functions`` give for a batch and outputs of zeros; a trace of it tells what they read."""
    outputs = {name: jnp.zeros(one.shape, one.dtype) for name, one in shapes.items()}
    return {str(i): function(outputs, batch) for i, function in enumerate(functions)}
