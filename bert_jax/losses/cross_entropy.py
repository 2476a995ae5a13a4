"""Losses and metrics, returned as sums over weighted positions; the caller divides them once, at the end."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from bert_jax.records import Batch, Sum
from bert_jax.task import Term


def cross_entropy(logits: jax.Array, labels: jax.Array, weights: jax.Array) -> tuple[Sum, Sum]:
    """Return negative log likelihood in nats and accuracy of softmax predictions, as sums in float32.

    Args:
      logits: [..., V].
      labels: [...] int, in 0..V-1, even where the weight is 0.
      weights: [...] float, 0 on positions that do not count.

    Returns:
      (weighted sum of nll, sum of weights), (weighted number of hits, sum of weights).
    """
    nll, hits = _surprises(logits.astype(jnp.promote_types(logits.dtype, jnp.float32)), labels)
    count = jnp.sum(weights)
    return Sum(jnp.sum(nll * weights), count), Sum(jnp.sum(hits * weights), count)


@jax.custom_vjp
def _surprises(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the negative log likelihood [...] of labels [...] by logits [..., V], and 1 if no logit is larger, or 0.

    The gradient compares each class with the label where autodiff would scatter into an array of zeros, so that XLA
    makes a single kernel of it.
    """
    return _with_exponentials(logits, labels)[0]


def _with_exponentials(logits: jax.Array, labels: jax.Array) -> Any:
    largest = jnp.max(logits, axis=-1)
    total = jnp.sum(jnp.exp(logits - largest[..., None]), axis=-1)
    label_logits = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    # An argmax over V would cost more than the softmax on a CPU.
    hits = (label_logits >= largest).astype(logits.dtype)
    normaliser = largest + jnp.log(total)
    return (normaliser - label_logits, hits), (logits, labels, normaliser)


def _surprises_gradient(saved: Any, gradients: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
    logits, labels, normaliser = saved
    probabilities = jnp.exp(logits - normaliser[..., None])
    classes = jax.lax.broadcasted_iota(labels.dtype, logits.shape, logits.ndim - 1)
    return (probabilities - (classes == labels[..., None])) * gradients[0][..., None], None


_surprises.defvjp(_with_exponentials, _surprises_gradient)


@dataclasses.dataclass(frozen=True)
class OfLabels:
    """A function (outputs, batch) -> ``Sum`` of softmax predictions, which are named.

    Attributes:
      logits: the name of an output [B, ..., V] of the model.
      labels, weights: names of features [B, ...] of the batch or, where it has none of that name, of outputs. The loss
        divides by the sum of the weights of the global batch, so they need not be normalised.
    """

    logits: str
    labels: str
    weights: str

    def read(self, outputs: Mapping[str, jax.Array], batch: Batch) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return logits, labels, and weights in float32 or wider. Raises ``KeyError`` with a name that is missing."""
        labels, weights = (batch[name] if name in batch else outputs[name] for name in (self.labels, self.weights))
        return outputs[self.logits], labels, weights.astype(jnp.promote_types(weights.dtype, jnp.float32))


@runtime_checkable
class Teachable(Protocol):
    """A loss in which the outputs of another model, a teacher, may take the place of labels."""

    @property
    def scores(self) -> tuple[str, ...]:
        """The names of the outputs that are compared with labels."""
        ...

    def taught(
        self,
        outputs: Mapping[str, jax.Array],
        said: Mapping[str, jax.Array],
        batch: Batch,
        temperature: float,
    ) -> Sum:
        """Return the loss of the same targets and weights, against the ``scores`` that the teacher has ``said``."""
        ...


def divergence(logits: jax.Array, said: jax.Array, weights: jax.Array, temperature: float) -> Sum:
    """Return T^2 KL(softmax(said / T) || softmax(logits / T)) in nats, as a sum in float32 or wider.

    With T^2, gradients are of the same size at every temperature T (Hinton et al. 2015, section 2). Of two models with
    unequal numbers of embeddings, the embeddings that both have are compared.

    Args:
      logits, said: [..., V].
      weights: [...], 0 on positions that do not count.
    """
    size = min(logits.shape[-1], said.shape[-1])
    student, teacher = (
        jax.nn.log_softmax(x[..., :size].astype(jnp.promote_types(x.dtype, jnp.float32)) / temperature)
        for x in (logits, said)
    )
    each = jnp.sum(jnp.exp(teacher) * (teacher - student), axis=-1)
    return Sum(temperature**2 * jnp.sum(each * weights), jnp.sum(weights))


class CrossEntropy(OfLabels):
    """The weighted sum of negative log likelihoods in nats, and the sum of weights."""

    def __call__(self, outputs: Mapping[str, jax.Array], batch: Batch) -> Sum:
        return cross_entropy(*self.read(outputs, batch))[0]

    @property
    def scores(self) -> tuple[str, ...]:
        return (self.logits,)

    def taught(
        self,
        outputs: Mapping[str, jax.Array],
        said: Mapping[str, jax.Array],
        batch: Batch,
        temperature: float,
    ) -> Sum:
        """Return the ``divergence`` from the teacher's logits."""
        logits, _, weights = self.read(outputs, batch)
        return divergence(logits, said[self.logits], weights, temperature)


class Accuracy(OfLabels):
    """The weighted number of labels with the highest logit, and the sum of weights."""

    def __call__(self, outputs: Mapping[str, jax.Array], batch: Batch) -> Sum:
        return cross_entropy(*self.read(outputs, batch))[1]


def prediction(
    logits: str,
    labels: str,
    weights: str,
    weight: float = 1.0,
    baseline: Literal["cloze", "majority", "none"] = "majority",
) -> Term:
    """Return the term of predicting labels: a ``CrossEntropy``, with the measure ``accuracy``."""
    names = (logits, labels, weights)
    return Term(CrossEntropy(*names), weight, {"accuracy": Accuracy(*names)}, baseline)


def token_metrics(batch: Batch) -> dict[str, Sum]:
    """Return the metric "tokens", which ``task.Losses`` requires: the number of real tokens in the batch."""
    tokens = jnp.sum(batch["attention_mask"]).astype(jnp.float32)
    return {"tokens": Sum(tokens, jnp.ones_like(tokens))}
