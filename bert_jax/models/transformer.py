"""Transformer layers, stacks of them, and the two forms of their parameters: one tree a layer, or stacked arrays."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bert_jax.models import rotary
from bert_jax.models.attention import Attention, Context, CrossAttention, Memory
from bert_jax.models.config import Block, TransformerConfig
from bert_jax.models.dropout import RowRng, dropout
from bert_jax.models.gradients import gated
from bert_jax.models.kernels.base import KEPT
from bert_jax.models.masks import Queries, Visible
from bert_jax.models.placement import constrain
from bert_jax.models.primitives import ACTIVATIONS, Dense, LayerNorm
from bert_jax.models.relative import RelativeAttention
from bert_jax.records import Batch

# The name of stacked layers, the beginning of the name of a single layer, and the name of a layer that all share.
STACKED, UNROLLED, SHARED = "layers", "layer_", "layer"
REMAT_POLICIES = {
    "dots": jax.checkpoint_policies.save_from_both_policies(
        jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
        # The results of a kernel take no more memory than a product's, and without them the kernel would run twice.
        jax.checkpoint_policies.save_only_these_names(*KEPT),
    ),
    "full": jax.checkpoint_policies.nothing_saveable,
}


class _Mlp(nn.Module):
    """The position-wise feed-forward network. If gated, it still has one ``input`` kernel."""

    config: TransformerConfig
    block: Block

    @nn.compact
    def __call__(self, x: jax.Array, rng: RowRng | None) -> jax.Array:
        """Return [B, L, D] for x [B, L, D]."""
        config, block, activation = self.config, self.block, ACTIVATIONS[self.config.activation]
        embed, mlp = (("embed", config.hidden_size),), (("mlp", config.mlp_dim),)
        wide: tuple[tuple[str | None, int], ...] = ((None, 2), *mlp) if block.gated else mlp
        hidden = Dense(config, embed, wide, bias=config.biases, name="input")(x)
        hidden = gated(activation, hidden) if block.gated else activation(hidden)
        hidden = dropout(hidden, block.inner_dropout_rate, rng, "mlp_inner")
        hidden = constrain(hidden, "batch", "length", "mlp")
        return Dense(config, mlp, embed, bias=config.biases, scale=block.output_scale, name="output")(hidden)


class Layer(nn.Module):
    """One Transformer layer of the form ``block``."""

    config: TransformerConfig
    block: Block

    @nn.compact
    def __call__(
        self, x: jax.Array, context: Context, rng: RowRng | None, index: int | jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Return the layer's output [B, L, D] for x [B, L, D] twice: as the carry of a scan and as its output."""
        config, block = self.config, self.block
        before, after = block.norm == "before", block.norm == "after"
        rng = rng and rng.site(index)
        read = LayerNorm(config, name="attention_layer_norm")(x) if before and block.first_norm else x
        kind = Attention if block.relative is None else RelativeAttention
        attended = kind(config, block, name="attention")(read, context.of_layer(index), rng)
        x = x + dropout(attended, config.attention_output_dropout_rate, rng, "attention_output")
        x = LayerNorm(config, name="attention_layer_norm")(x) if after else x
        if block.cross:
            read = LayerNorm(config, name="cross_attention_layer_norm")(x) if before else x
            attended = CrossAttention(config, block, name="cross_attention")(read, context, rng)
            x = x + dropout(attended, config.attention_output_dropout_rate, rng, "cross_attention_output")
            x = LayerNorm(config, name="cross_attention_layer_norm")(x) if after else x
        read = LayerNorm(config, name="mlp_layer_norm")(x) if before else x
        x = x + dropout(_Mlp(config, block, name="mlp")(read, rng), config.dropout_rate, rng, "mlp_output")
        x = LayerNorm(config, name="mlp_layer_norm")(x) if after else x
        x = constrain(x, "batch", "length", "embed")
        return x, x


class _Period(nn.Module):
    """Consecutive layers of unlike forms, which are scanned together."""

    config: TransformerConfig
    blocks: tuple[Block, ...]
    layer: Any  # the class of each layer

    @nn.compact
    def __call__(
        self, x: jax.Array, context: Context, rng: RowRng | None, indices: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Return the last layer's output [B, L, D] for x [B, L, D], and the outputs of all layers [period, B, L, D]."""
        kept = []
        for number, block in enumerate(self.blocks):
            x, _ = self.layer(self.config, block, name=f"{UNROLLED}{number}")(x, context, rng, indices[number])
            kept.append(x)
        return x, jnp.stack(kept)


def scanned_from(blocks: tuple[Block, ...]) -> tuple[int, int]:
    """Return (first, period) of a scan over ``blocks``: the layers before ``first`` are unrolled.

    From ``first`` on, the forms of ``period`` layers repeat to the end. As few layers as possible are compiled.
    """
    count = len(blocks)
    fitting = (
        (first, period)
        for first in range(count)
        for period in range(1, count - first + 1)
        if (count - first) % period == 0 and blocks[first : count - period] == blocks[first + period :]
    )
    return min(fitting, key=lambda pair: (sum(pair), pair))


def with_remat(layer: Any, config: TransformerConfig) -> Any:
    """Return ``layer``, the class of a layer, whose backward pass recomputes what ``config.remat`` says."""
    if config.remat == "none":
        return layer
    # Inside a scan the loop itself keeps XLA from merging the recomputation with the forward pass.
    return nn.remat(layer, policy=REMAT_POLICIES[config.remat], prevent_cse=config.layers == "unrolled")


def add_layers(module: Any, config: TransformerConfig, blocks: tuple[Block, ...] | None = None) -> None:
    """Add layers of the forms ``blocks``, by default ``config.blocks``; call this in the ``setup`` of ``module``.

    The parameters are named ``layer_<i>``, or ``layers`` if scanned; if the layers are shared, ``layer`` in both cases.
    Scanned layers of unlike forms are ``layers/layer_<i>``, i within a period, and those before the first period
    ``layer_<i>``.
    """
    layer = with_remat(Layer, config)
    shared, blocks = config.shares_layers, blocks or config.blocks
    if config.layers == "unrolled":
        module.layer = layer(config, blocks[0]) if shared else [layer(config, block) for block in blocks]
        return
    first, period = scanned_from(blocks)
    axes: Any = {"intermediates": 0, "memory": 0} | ({} if shared else {"params": 0})
    scan: Any = nn.scan(
        layer if period == 1 else _Period,
        variable_axes=axes,
        variable_broadcast="params" if shared else False,
        split_rngs={"params": not shared},
        in_axes=(nn.broadcast, nn.broadcast, 0),
        length=(len(blocks) - first) // period,
        metadata_params={nn.PARTITION_NAME: "layers"},
    )
    alike = blocks[first : first + period]
    scanned = scan(config, alike[0]) if period == 1 else scan(config, alike, layer)
    if shared:
        module.layer = scanned
    else:
        module.layers = scanned
        module.layer = [layer(config, block) for block in blocks[:first]]


def run_layers(
    module: Any, x: jax.Array, context: Context, rng: RowRng | None, blocks: tuple[Block, ...] | None = None
) -> tuple[jax.Array, Any]:
    """Run the layers of ``add_layers`` on x [B, L, D]; return their output [B, L, D] and a function.

    The function returns ``x`` and the outputs of all layers, stacked: [N + 1, B, L, D].

    Args:
      context: from ``context_of``.
      blocks: the forms of the layers, as in ``add_layers``.
    """
    config: TransformerConfig = module.config
    kept, blocks = [x], blocks or config.blocks
    first, period = (len(blocks), 1) if config.layers == "unrolled" else scanned_from(blocks)
    for index in range(first):
        layer = module.layer if config.shares_layers else module.layer[index]
        x, output = layer(x, context, rng, index)
        kept.append(output)
    if first == len(blocks):
        return x, lambda: jnp.stack(kept)
    scanned = module.layer if config.shares_layers else module.layers
    indices = jnp.arange(first, len(blocks), dtype=jnp.uint32)
    x, outputs = scanned(x, context, rng, indices if period == 1 else indices.reshape(-1, period))
    return x, lambda: jnp.concatenate([jnp.stack(kept), outputs.reshape(-1, *x.shape)])


# The features of a batch that layers read, if they are there, besides ``attention_mask`` and, for rotary positions,
# ``position_ids``.
READS = frozenset({"sequence_ids", "order_ids"})


def context_of(config: TransformerConfig, batch: Batch, blocks: tuple[Block, ...] | None = None) -> Context:
    """Return the context in which layers of the forms ``blocks``, by default ``config.blocks``, read a batch.

    In generation a batch has ``memory_ids`` [B, S] too: the ids of the tokens in the slots of the memory, 0 where there
    is none. A batch of new tokens also has ``position_ids`` [B, L], ``memory_positions`` [B, S], the positions of the
    tokens in the slots, and ``memory_slot`` [] int32, the slot of the first new token. A new token sees the tokens of
    its id in the slots up to its own.
    """
    blocks = blocks or config.blocks
    positions = batch.get("position_ids", jnp.arange(batch["input_ids"].shape[1])[None, :])
    bases = {block.rotation for block in blocks if block.rotation is not None}
    wide = jnp.promote_types(config.compute_dtype, jnp.float32)
    rotations = {base: rotary.rotation(positions, config.head_dim, base, wide) for base in bases}
    slots, first = batch.get("memory_ids"), batch.get("memory_slot")
    memory = None if slots is None else Memory(slots, first)
    if slots is None or first is None:
        mask, ids = batch["attention_mask"], batch.get("sequence_ids")
        visible = Visible(mask, ids, config.causal, order_ids=batch.get("order_ids"))
    else:
        order = jnp.arange(slots.shape[1])[None]
        new = first + jnp.arange(batch["input_ids"].shape[1])[None]
        queries = Queries(batch["attention_mask"].astype(jnp.int32), positions, new)
        visible = Visible(slots > 0, slots, order_ids=order, places=batch["memory_positions"], queries=queries)
    return Context(visible, rotations, memory=memory)


def factors_of(seen: Any) -> list[tuple[jax.Array, jax.Array]]:
    """Return queries and keys [B, L, H, head_dim] of each layer, from the "intermediates" of an encoder."""
    found = []
    for name in sorted(seen, key=lambda name: (name == STACKED, len(name), name)):
        members = [seen[name]] if "attention" in seen[name] else [seen[name][n] for n in sorted(seen[name])]
        calls = [member["attention"]["factors"] for member in members]
        stacked = calls[0][0][0].ndim == 5
        of_members = [list(zip(*one[0], strict=True)) if stacked else list(one) for one in calls]
        found += [pair for together in zip(*of_members, strict=True) for pair in together]
    return found


def stack_layers(params: Any, groups: tuple[int, int] = (0, 1)) -> Any:
    """Return the parameters of an unrolled model in the form of the same model with ``layers="scanned"``.

    The dictionary that holds the layers may be at any depth of the tree; numpy arrays stay numpy arrays.

    Args:
      groups: the result of ``scanned_from`` for the forms of the layers; by default all are alike.
    """
    if not isinstance(params, dict):
        return params
    layers = {name: tree for name, tree in params.items() if name.removeprefix(UNROLLED).isdigit()}
    rest = {name: stack_layers(tree, groups) for name, tree in params.items() if name not in layers}
    if not layers:
        return rest
    first, period = groups
    rest |= {f"{UNROLLED}{i}": layers[f"{UNROLLED}{i}"] for i in range(first)}
    alike = [
        jax.tree.map(_stack, *(layers[f"{UNROLLED}{i}"] for i in range(first + number, len(layers), period)))
        for number in range(period)
    ]
    return rest | {STACKED: alike[0] if period == 1 else {f"{UNROLLED}{i}": tree for i, tree in enumerate(alike)}}


def unstack_layers(params: Any, groups: tuple[int, int] = (0, 1)) -> Any:
    """Return the parameters of a scanned model in the form of the unrolled model: the inverse of ``stack_layers``."""
    if not isinstance(params, dict):
        return params
    rest = {name: unstack_layers(tree, groups) for name, tree in params.items() if name != STACKED}
    if STACKED not in params:
        return rest
    (first, period), stacked = groups, params[STACKED]
    members = [stacked] if period == 1 else [stacked[f"{UNROLLED}{number}"] for number in range(period)]
    count = period * jax.tree.leaves(stacked)[0].shape[0]
    return rest | {
        f"{UNROLLED}{first + i}": jax.tree.map(lambda x, at=i // period: x[at], members[i % period])
        for i in range(count)
    }


def _stack(*leaves: Any) -> Any:
    return np.stack(leaves) if all(isinstance(leaf, np.ndarray) for leaf in leaves) else jnp.stack(leaves)
