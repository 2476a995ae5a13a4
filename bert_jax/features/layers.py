"""The kinds of vectors that can be taken from an encoder's hidden states, named as in Devlin et al. 2019, table 7."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from bert_jax.configuration import choose
from bert_jax.errors import UserError

LAST_FOUR = 4


class VectorKind(NamedTuple):
    """A kind of vector, computed from the hidden states of an encoder.

    Attributes:
      of: the function that computes the vectors, [B, L, ...] or [B, D], from (hidden states [N + 1, B, L, D] float32,
        attention_mask [B, L], weights).
      needs: the number of Transformer layers that the model must have.
      is_sentence: whether there is one vector for each text rather than one for each token.
      weighted: the number of top layers in a weighted sum, or 0 for all layers. None if it is not a weighted sum.
    """

    of: Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
    needs: int = 1
    is_sentence: bool = False
    weighted: int | None = None


def weighted_sum(hidden: jax.Array, weights: jax.Array) -> jax.Array:
    """Return the weighted sum [...] of the last n layers of ``hidden`` [N + 1, ...]; ``weights`` is [n].

    The first entry of ``hidden`` is the embeddings.
    """
    return jnp.tensordot(weights, hidden[-weights.shape[0] :], axes=1)


def concatenated(hidden: jax.Array) -> jax.Array:
    """Return the last four layers of hidden [N + 1, ..., D], concatenated to [..., 4D], the lowest layer first."""
    return jnp.concatenate(list(hidden[-LAST_FOUR:]), axis=-1)


def mean(sequence: jax.Array, attention_mask: jax.Array) -> jax.Array:
    """Return the mean [B, D] of sequence [B, L, D] over real tokens.

    [CLS] and [SEP] are included, as in sentence-transformers.
    """
    mask = attention_mask[..., None].astype(sequence.dtype)
    return jnp.sum(sequence * mask, axis=1) / jnp.maximum(jnp.sum(mask, axis=1), 1.0)


LAYERS: dict[str, VectorKind] = {
    "embeddings": VectorKind(lambda hidden, mask, weights: hidden[0]),
    "second_to_last": VectorKind(lambda hidden, mask, weights: hidden[-2]),
    "last": VectorKind(lambda hidden, mask, weights: hidden[-1]),
    "sum_last_four": VectorKind(lambda hidden, mask, weights: jnp.sum(hidden[-LAST_FOUR:], axis=0), LAST_FOUR),
    "concat_last_four": VectorKind(lambda hidden, mask, weights: concatenated(hidden), LAST_FOUR),
    "weighted_sum_last_four": VectorKind(
        lambda hidden, mask, weights: weighted_sum(hidden, weights), LAST_FOUR, False, 4
    ),
    "weighted_sum_all": VectorKind(lambda hidden, mask, weights: weighted_sum(hidden, weights), 1, False, 0),
    "all": VectorKind(lambda hidden, mask, weights: jnp.moveaxis(hidden, 0, 2)),
    "mean": VectorKind(lambda hidden, mask, weights: mean(hidden[-1], mask), is_sentence=True),
    "cls": VectorKind(lambda hidden, mask, weights: hidden[-1][:, 0], is_sentence=True),
}
TOP_ONLY = ("last", "mean", "cls")  # these need only the last layer


def check_layers(names: Sequence[str]) -> None:
    """Raise ``UserError`` if a name is unknown or given twice, or if there is no name."""
    for name in names:
        choose("layer", name, LAYERS)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice or not names:
        raise UserError(
            f"layers names {', '.join(twice) or 'none'}{' twice' * bool(twice)}; allowed: {', '.join(LAYERS)}"
        )


def check_depth(names: Sequence[str], num_layers: int) -> None:
    """Raise ``UserError`` if a name needs more layers than the ``num_layers`` of the model."""
    lacking = [name for name in names if LAYERS[name].needs > num_layers]
    if lacking:
        there = [name for name, layer in LAYERS.items() if layer.needs <= num_layers]
        raise UserError(
            f"the model has {num_layers} layers, too few for {', '.join(lacking)}; allowed: {', '.join(there)}"
        )


def layer_weights(name: str, num_layers: int, given: Sequence[float] | None) -> tuple[float, ...]:
    """Return the weights for the vectors ``name``; () if these are not weighted sums.

    Args:
      given: the weights, or None for equal weights.

    Raises:
      UserError: the number of weights is not the number of layers.
    """
    weighted = LAYERS[name].weighted
    if weighted is None:
        return ()
    count = weighted or num_layers
    if given is not None and len(given) != count:
        raise UserError(f"{name} needs {count} weights, the lowest layer first; {len(given)} are given")
    return tuple(given) if given is not None else (1.0 / count,) * count
