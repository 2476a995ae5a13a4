"""Computes the attention probabilities of a trained model's heads."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.errors import UserError
from bert_jax.interchange.workdir import TrainedModel
from bert_jax.models.config import ModelConfig
from bert_jax.models.model import encoder_of
from bert_jax.models.transformer import kept_probabilities


def attention_maps(
    trained: TrainedModel,
    input_ids: Sequence[Sequence[int] | np.ndarray],
    token_type_ids: Sequence[Sequence[int] | np.ndarray],
    layers: Sequence[int] | None = None,
) -> list[np.ndarray]:
    """Return the attention probabilities of sequences, without dropout. Sequences may have different lengths L.

    Args:
      layers: the numbers of layers, from 0, or negative from the top. None means all layers.

    Returns:
      [N, H, L, L] float32 for each sequence, where N is the number of ``layers``. Row q is the attention of position q
      and sums to 1. [] if the encoder, one of a user's own, does not have the layers that keep these probabilities.

    Raises:
      UserError: the model does not have such a layer.
    """
    total = trained.config.num_layers
    chosen = tuple(range(total)) if layers is None else tuple(layers)
    wrong = [layer for layer in chosen if not -total <= layer < total]
    if wrong:
        raise UserError(f"there is no layer {wrong[0]}; the model has {total}, numbered from 0, or from -1 at the top")
    lengths = [len(ids) for ids in input_ids]
    names = ("input_ids", "token_type_ids", "attention_mask")
    batch = {name: np.zeros((len(lengths), max(lengths)), np.int32) for name in names}
    for row, length in enumerate(lengths):
        for name, values in zip(names, (input_ids[row], token_type_ids[row], 1), strict=True):
            batch[name][row, :length] = values
    # If unrolled, each layer stores its own probabilities. Without a backward pass, remat would save nothing.
    config = dataclasses.replace(trained.config, remat="none", layers="unrolled")
    found = _probabilities(config, chosen, trained.params["encoder"], batch)
    if found is None:
        return []
    maps = np.asarray(found)
    return [maps[:, row, :, :length, :length] for row, length in enumerate(lengths)]


@functools.partial(jax.jit, static_argnums=(0, 1))
def _probabilities(
    config: ModelConfig, layers: tuple[int, ...], encoder: Any, batch: Mapping[str, np.ndarray]
) -> jax.Array | None:
    """Return the attention probabilities of a batch as [N, B, H, L, L] float32; None if the encoder keeps none."""
    _, kept = encoder_of(config).apply({"params": encoder}, batch, mutable=["intermediates"])
    try:
        found = kept_probabilities(config, kept["intermediates"])
    except KeyError:
        return None
    return jnp.stack([found[i] for i in layers]).astype(jnp.float32)
