"""Computes the attention probabilities of a trained model's heads."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.errors import UserError
from bert_jax.features.trained_model import TrainedModel
from bert_jax.models.config import TransformerConfig
from bert_jax.models.model import encoder_of
from bert_jax.models.transformer import kept_probabilities
from bert_jax.rows.example_rows import EncodedRows
from bert_jax.training.forward import Forward
from bert_jax.training.mesh import MeshConfig, make_mesh

BATCH_SIZE = 32


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
    config = trained.config
    if not isinstance(config, TransformerConfig):
        return []
    total = config.num_layers
    chosen = tuple(range(total)) if layers is None else tuple(layers)
    wrong = [layer for layer in chosen if not -total <= layer < total]
    if wrong:
        raise UserError(f"there is no layer {wrong[0]}; the model has {total}, numbered from 0, or from -1 at the top")
    # If unrolled, each layer stores its own probabilities. Without a backward pass, remat would save nothing.
    config = config.plain()
    rows = EncodedRows.of({"input_ids": input_ids, "token_type_ids": token_type_ids}, {})
    mesh = make_mesh(MeshConfig(), jax.local_devices())  # without the devices of other processes, which do not run this
    forward = Forward(functools.partial(_probabilities, config, chosen), mesh, BATCH_SIZE)
    maps: dict[int, np.ndarray] = {}
    for numbers, outputs in forward.rows(rows, config.max_length, trained.params["encoder"]):
        for number, of_row in zip(numbers, outputs.get("maps", ()), strict=False):
            maps[number] = of_row[:, :, : rows.lengths[number], : rows.lengths[number]]
    return [maps[number] for number in sorted(maps)]


@functools.partial(jax.jit, static_argnums=(0, 1))
def _probabilities(
    config: TransformerConfig, layers: tuple[int, ...], encoder: Any, batch: Mapping[str, jax.Array]
) -> dict[str, jax.Array]:
    """Return the attention probabilities of a batch as "maps" [B, N, H, L, L] float32, if the encoder keeps them."""
    _, kept = encoder_of(config).apply({"params": encoder}, batch, mutable=["intermediates"])
    try:
        found = kept_probabilities(config, kept["intermediates"])
    except KeyError:
        return {}
    return {"maps": jnp.stack([found[i] for i in layers], axis=1).astype(jnp.float32)}
