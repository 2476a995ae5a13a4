"""Multi-head self-attention."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.models.config import Block, TransformerConfig
from bert_jax.models.dropout import RowRng
from bert_jax.models.kernels import choice
from bert_jax.models.kernels.base import Case, Factors
from bert_jax.models.kernels.plain import SITE, plain
from bert_jax.models.kernels.trial import compiles
from bert_jax.models.masks import Visible
from bert_jax.models.placement import Placement, constrain, on_each_device, part_of, placement, platform
from bert_jax.models.primitives import Dense
from bert_jax.models.rotary import Rotation, rotate

_AXES = ("batch", "length", "heads", "head_dim")  # the logical axes of queries, keys, values and results


def attend(factors: Factors, visible: Visible, rate: float, rng: RowRng | None, wanted: str = "auto") -> jax.Array:
    """Return scaled dot-product attention, with dropout on the probabilities (Vaswani et al. 2017, section 3.2).

    All kernels give the same result but for rounding, dropout included. ``models.kernels.choice`` says which kernel
    computes arrays of these sizes. Plain attention computes them where no mesh is placed, or where the mesh does not
    divide the arrays, because the partitioner can divide plain attention.

    Args:
      factors: query, key and value [B, L, H, head_dim], like the result. In each row the real tokens come before the
        padding.
      wanted: ``config.model.attention_kernel``: the kernel to use where it can compute this case.
    """
    rate = 0.0 if rng is None else rate
    place, query = placement.get(), factors[0]
    if place is not None and wanted != "plain" and (part := part_of(place, query.shape, *_AXES)):
        packed = visible.sequence_ids is not None
        sizes = (query.shape[1], part[2], query.shape[3], query.dtype.name)
        case = Case(platform(), *sizes, rate, packed, visible.window, visible.causal)
        name = choice.choose(wanted, case)
        if name != "plain" and compiles(name, case, kernel := choice.find(name)):
            return _on_each_device(place, functools.partial(kernel.attend, case=case), factors, visible, rng)
    return plain(factors, visible, rate, rng)


def _on_each_device(
    place: Placement, local: Callable[..., jax.Array], factors: Factors, visible: Visible, rng: RowRng | None
) -> jax.Array:
    """Return ``local`` computed by each device on the device's rows and heads, as no partitioner divides a kernel.

    Args:
      local: a function (factors, ids of queries and keys, dropout keys) -> [B, L, H, head_dim], as ``base.Kernel`` has.
    """
    batch = factors[0].shape[0]
    row_keys = jnp.zeros(batch, jnp.uint32) if rng is None else rng.site(SITE).row_keys()

    def on_one(factors: Factors, ids: Any, row_keys: jax.Array) -> jax.Array:
        axes = place.axes("heads")
        first = jax.lax.axis_index(axes) * factors[0].shape[2] if axes else 0
        return local(factors, ids, (row_keys, jnp.full(1, first, jnp.int32)))

    arrays = (factors, visible.ids(), row_keys)
    split, ids = place.spec(*_AXES), place.spec("batch", "length")
    inputs = ((split, split, split), (ids, ids), place.spec("batch"))
    return on_each_device(place, on_one, arrays, inputs, split)  # type: ignore[no-any-return]


class Context(NamedTuple):
    """The arguments of a layer besides its vectors.

    Attributes:
      visible: who sees whom in a whole sequence; a layer with a window narrows it.
      rotations: base of rotary positions -> its rotation.
    """

    visible: Visible
    rotations: dict[float, Rotation]


class SelfAttention(nn.Module):
    """Projects to queries, keys and values, rotates queries and keys, applies ``attend``, and projects back.

    Parameters: ``query``, ``key``, ``value`` or, if fused, ``qkv``, and ``output``, each with a kernel and, if
    ``config.biases``, a bias.
    """

    config: TransformerConfig
    block: Block

    @nn.compact
    def __call__(self, x: jax.Array, context: Context, rng: RowRng | None) -> jax.Array:
        """Return [B, L, D] for x [B, L, D]."""
        config, block = self.config, self.block
        embed = (("embed", config.hidden_size),)
        heads = (("heads", config.num_heads), ("head_dim", config.head_dim))
        if block.fused:
            dense = Dense(config, embed, ((None, 3), *heads), bias=config.biases, name="qkv")
            query, key, value = (jnp.squeeze(factor, 2) for factor in jnp.split(dense(x), 3, axis=2))
        else:
            query, key, value = (
                Dense(config, embed, heads, bias=config.biases, name=name)(x) for name in ("query", "key", "value")
            )
        query, key, value = (  # each [B, L, H, head_dim]
            constrain(factor, *_AXES) for factor in (query, key, value)
        )
        if block.rotation is not None:
            query, key = (rotate(factor, context.rotations[block.rotation]) for factor in (query, key))
        self.sow("intermediates", "factors", (query, key))  # does nothing unless the caller asks for intermediates
        visible = context.visible.within(block.window)
        rate, wanted = config.attention_dropout_rate, config.attention_kernel
        mixed = attend((query, key, value), visible, rate, rng, wanted)
        return Dense(config, heads, embed, bias=config.biases, scale=block.output_scale, name="output")(mixed)
