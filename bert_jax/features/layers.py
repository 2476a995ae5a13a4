"""The kinds of vectors that can be taken from an encoder's hidden states, named as in Devlin et al. 2019, table 7."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from bert_jax.configuration import choose
from bert_jax.errors import UserError
from bert_jax.models.config import ModelConfig
from bert_jax.models.heads import combined, pooled


class VectorKind(NamedTuple):
    """A kind of vector, computed from the hidden states of an encoder.

    Attributes:
      needs: the number of Transformer layers that the model must have.
      is_sentence: whether there is one vector for each text rather than one for each token.
      weighted: the number of top layers in a weighted sum, or 0 for all layers. None if it is not a weighted sum.
    """

    needs: int = 1
    is_sentence: bool = False
    weighted: int | None = None


LAYERS: dict[str, VectorKind] = {
    "embeddings": VectorKind(),
    "second_to_last": VectorKind(),
    "last": VectorKind(),
    "sum_last_four": VectorKind(needs=4),
    "concat_last_four": VectorKind(needs=4),
    "weighted_sum_last_four": VectorKind(needs=4, weighted=4),
    "weighted_sum_all": VectorKind(weighted=0),
    "all": VectorKind(),
    "mean": VectorKind(is_sentence=True),
    "cls": VectorKind(is_sentence=True),
}
TOP_ONLY = ("last", "mean", "cls")  # these need only the last layer


def vectors(name: str, hidden: jax.Array, attention_mask: jax.Array, weights: Sequence[float]) -> jax.Array:
    """Return the vectors ``name``, [B, L, ...] or [B, D] float32, from hidden [N + 1, B, L, D], the embeddings first.

    ``weights`` are those of ``layer_weights``. "all" is [B, L, N + 1, D].
    """
    if name in ("mean", "cls"):
        return pooled(hidden[-1], attention_mask, name)  # type: ignore[arg-type]
    return jnp.moveaxis(hidden, 0, 2) if name == "all" else combined(name, hidden, jnp.asarray(weights, jnp.float32))


def vector_shape(name: str, config: ModelConfig) -> tuple[int, ...]:
    """Return the shape of one vector of the layer ``name``."""
    if name == "all":
        return (config.num_layers + 1, config.hidden_size)
    return ((4 if name == "concat_last_four" else 1) * config.hidden_size,)


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
