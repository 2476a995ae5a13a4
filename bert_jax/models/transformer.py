"""Transformer layers and stacks of them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.models.attention import SelfAttention
from bert_jax.models.config import ModelConfig
from bert_jax.models.dropout import RowRng, dropout
from bert_jax.models.kernels.row_attention import KEPT
from bert_jax.models.masks import Visible
from bert_jax.models.primitives import ACTIVATIONS, Dense, LayerNorm, constrain

REMAT_POLICIES = {
    "dots": jax.checkpoint_policies.save_from_both_policies(
        jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
        # The kernel's results take no more memory than those of a product, and it would run twice.
        jax.checkpoint_policies.save_only_these_names(*KEPT),
    ),
    "full": jax.checkpoint_policies.nothing_saveable,
}


class Mlp(nn.Module):
    """The position-wise feed-forward network, without dropout inside."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return [B, L, D] for x [B, L, D]."""
        config = self.config
        embed, mlp = (("embed", config.hidden_size),), (("mlp", config.mlp_dim),)
        hidden = ACTIVATIONS[config.activation](Dense(config, embed, mlp, name="input")(x))
        return Dense(config, mlp, embed, name="output")(constrain(hidden, "batch", "length", "mlp"))


class Layer(nn.Module):
    """One Transformer layer, normalised after each residual sum."""

    config: ModelConfig

    @nn.compact
    def __call__(
        self, x: jax.Array, visible: Visible, rng: RowRng | None, index: int | jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Return the layer's output [B, L, D] for x [B, L, D] twice: as the carry of a scan and as its output."""
        config = self.config
        rng = rng and rng.site(index)
        attended = SelfAttention(config, name="attention")(x, visible, rng)
        attended = dropout(attended, config.dropout_rate, rng, "attention_output")
        x = LayerNorm(config, name="attention_layer_norm")(x + attended)
        expanded = dropout(Mlp(config, name="mlp")(x), config.dropout_rate, rng, "mlp_output")
        x = LayerNorm(config, name="mlp_layer_norm")(x + expanded)
        x = constrain(x, "batch", "length", "embed")
        return x, x


def rematerialised(config: ModelConfig, layer: type[nn.Module]) -> Any:
    """Return ``layer`` with a backward pass that recomputes what ``config.remat`` says."""
    if config.remat == "none":
        return layer
    # Inside a scan the loop itself keeps XLA from merging the recomputation with the forward pass.
    return nn.remat(layer, policy=REMAT_POLICIES[config.remat], prevent_cse=config.layers == "unrolled")


def add_layers(module: Any, config: ModelConfig, layer: type[nn.Module] = Layer) -> None:
    """Add ``num_layers`` layers to ``module``; call this in the module's ``setup``.

    The parameters are named ``layer_<i>``, or ``layers`` if scanned; if the layers are shared, ``layer`` in both cases.
    """
    made, shared = rematerialised(config, layer), config.shares_layers
    if config.layers == "scanned":
        made = nn.scan(
            made,
            variable_axes={} if shared else {"params": 0},
            variable_broadcast="params" if shared else False,
            split_rngs={"params": not shared},
            in_axes=(nn.broadcast, nn.broadcast, 0),
            length=config.num_layers,
            metadata_params={nn.PARTITION_NAME: "layers"},
        )
    if shared:
        module.layer = made(config)
    elif config.layers == "scanned":
        module.layers = made(config)
    else:
        module.layer = [made(config) for _ in range(config.num_layers)]


def run_layers(module: Any, x: jax.Array, visible: Visible, rng: RowRng | None) -> tuple[jax.Array, Any]:
    """Run the layers of ``add_layers`` on x [B, L, D]; return their output [B, L, D] and a function.

    The function returns ``x`` and the outputs of all layers, stacked: [N + 1, B, L, D].
    """
    config: ModelConfig = module.config
    if config.layers == "unrolled":
        kept = [x]
        for index in range(config.num_layers):
            layer = module.layer if config.shares_layers else module.layer[index]
            x, output = layer(x, visible, rng, index)
            kept.append(output)
        return x, lambda: jnp.stack(kept)
    scanned = module.layer if config.shares_layers else module.layers
    last, outputs = scanned(x, visible, rng, jnp.arange(config.num_layers, dtype=jnp.uint32))
    return last, lambda: jnp.concatenate([x[None], outputs])


def kept_probabilities(config: ModelConfig, kept: Any) -> list[jax.Array]:
    """Return the attention probabilities [B, H, L, L] of each unrolled layer, from an encoder's ``intermediates``."""
    if config.shares_layers:
        return list(kept["layer"]["attention"]["probabilities"])
    return [kept[f"layer_{i}"]["attention"]["probabilities"][0] for i in range(config.num_layers)]
