"""Transformer layers, stacks of them, and the two forms of their parameters: one tree a layer, or stacked arrays."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bert_jax.models.attention import SelfAttention
from bert_jax.models.config import TransformerConfig
from bert_jax.models.dropout import RowRng, dropout
from bert_jax.models.kernels.row_attention import KEPT
from bert_jax.models.masks import Visible
from bert_jax.models.primitives import ACTIVATIONS, Dense, LayerNorm, constrain

# The name of stacked layers, the beginning of the name of one layer, and the name of one that is applied N times.
STACKED, UNROLLED, SHARED = "layers", "layer_", "layer"
REMAT_POLICIES = {
    "dots": jax.checkpoint_policies.save_from_both_policies(
        jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
        # The kernel's results take no more memory than those of a product, and it would run twice.
        jax.checkpoint_policies.save_only_these_names(*KEPT),
    ),
    "full": jax.checkpoint_policies.nothing_saveable,
}


class _Mlp(nn.Module):
    """The position-wise feed-forward network, without dropout inside."""

    config: TransformerConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return [B, L, D] for x [B, L, D]."""
        config = self.config
        embed, mlp = (("embed", config.hidden_size),), (("mlp", config.mlp_dim),)
        hidden = ACTIVATIONS[config.activation](Dense(config, embed, mlp, name="input")(x))
        return Dense(config, mlp, embed, name="output")(constrain(hidden, "batch", "length", "mlp"))


class _Layer(nn.Module):
    """One Transformer layer, normalised after each residual sum."""

    config: TransformerConfig

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
        expanded = dropout(_Mlp(config, name="mlp")(x), config.dropout_rate, rng, "mlp_output")
        x = LayerNorm(config, name="mlp_layer_norm")(x + expanded)
        x = constrain(x, "batch", "length", "embed")
        return x, x


def add_layers(module: Any, config: TransformerConfig) -> None:
    """Add ``num_layers`` layers to ``module``; call this in the module's ``setup``.

    The parameters are named ``layer_<i>``, or ``layers`` if scanned; if the layers are shared, ``layer`` in both cases.
    """
    module_class: Any = _Layer
    shared = config.shares_layers
    if config.remat != "none":
        # Inside a scan the loop itself keeps XLA from merging the recomputation with the forward pass.
        unrolled = config.layers == "unrolled"
        module_class = nn.remat(_Layer, policy=REMAT_POLICIES[config.remat], prevent_cse=unrolled)
    if config.layers == "scanned":
        module_class = nn.scan(
            module_class,
            variable_axes={"intermediates": 0} if shared else {"params": 0, "intermediates": 0},
            variable_broadcast="params" if shared else False,
            split_rngs={"params": not shared},
            in_axes=(nn.broadcast, nn.broadcast, 0),
            length=config.num_layers,
            metadata_params={nn.PARTITION_NAME: "layers"},
        )
    if shared:
        module.layer = module_class(config)
    elif config.layers == "scanned":
        module.layers = module_class(config)
    else:
        module.layer = [module_class(config) for _ in range(config.num_layers)]


def run_layers(module: Any, x: jax.Array, visible: Visible, rng: RowRng | None) -> tuple[jax.Array, Any]:
    """Run the layers of ``add_layers`` on x [B, L, D]; return their output [B, L, D] and a function.

    The function returns ``x`` and the outputs of all layers, stacked: [N + 1, B, L, D].
    """
    config: TransformerConfig = module.config
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


def factors_of(seen: Any) -> list[tuple[jax.Array, jax.Array]]:
    """Return queries and keys [B, L, H, head_dim] of each layer, from the "intermediates" of an encoder."""
    layers = [seen[name]["attention"]["factors"] for name in sorted(seen, key=lambda name: (len(name), name))]
    if len(layers) > 1:
        return [calls[0] for calls in layers]
    calls = layers[0]
    stacked = calls[0][0].ndim == 5
    return list(zip(*calls[0], strict=True)) if stacked else list(calls)


def stack_layers(params: Any) -> Any:
    """Return the parameters of an unrolled model in the form of the same model with ``layers="scanned"``.

    The dictionary that holds the layers may be at any depth of the tree; numpy arrays stay numpy arrays.
    """
    if not isinstance(params, dict):
        return params
    layers = {name: tree for name, tree in params.items() if name.removeprefix(UNROLLED).isdigit()}
    rest = {name: stack_layers(tree) for name, tree in params.items() if name not in layers}
    if not layers:
        return rest
    in_order = [layers[f"{UNROLLED}{i}"] for i in range(len(layers))]
    return rest | {STACKED: jax.tree.map(_stack, *in_order)}


def unstack_layers(params: Any) -> Any:
    """Return the parameters of a scanned model in the form of the unrolled model: the inverse of ``stack_layers``."""
    if not isinstance(params, dict):
        return params
    rest = {name: unstack_layers(tree) for name, tree in params.items() if name != STACKED}
    if STACKED not in params:
        return rest
    stacked = params[STACKED]
    count = jax.tree.leaves(stacked)[0].shape[0]
    return rest | {f"{UNROLLED}{i}": jax.tree.map(lambda x, i=i: x[i], stacked) for i in range(count)}


def _stack(*leaves: Any) -> Any:
    return np.stack(leaves) if all(isinstance(leaf, np.ndarray) for leaf in leaves) else jnp.stack(leaves)
