"""Multi-head attention: to the tokens of the row, to another sequence, and to tokens whose keys were kept."""

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

AXES = ("batch", "length", "heads", "head_dim")  # the logical axes of queries, keys, values and results


def attend(factors: Factors, visible: Visible, rate: float, rng: RowRng | None, wanted: str = "auto") -> jax.Array:
    """Return scaled dot-product attention, with dropout on the probabilities (Vaswani et al. 2017, section 3.2).

    All kernels give the same result but for rounding, dropout included. ``models.kernels.choice`` says which kernel
    computes arrays of these sizes. Plain attention computes them where no mesh is placed, or where the mesh does not
    divide the arrays, because the partitioner can divide plain attention. It also computes what no kernel knows: an
    order, and queries that are other tokens than the keys.

    Args:
      factors: query [B, Q, H, head_dim], like the result; key and value [B, K, H, head_dim]. If the queries are the
        keys' tokens, the real tokens of each row come before the padding.
      wanted: ``config.model.attention_kernel``: the kernel to use where it can compute this case.
    """
    rate = 0.0 if rng is None else rate
    place, query = placement.get(), factors[0]
    known = wanted != "plain" and visible.is_plain
    if place is not None and known and (part := part_of(place, query.shape, *AXES)):
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
    split, ids = place.spec(*AXES), place.spec("batch", "length")
    inputs = ((split, split, split), (ids, ids), place.spec("batch"))
    return on_each_device(place, on_one, arrays, inputs, split)  # type: ignore[no-any-return]


class Source(NamedTuple):
    """Another sequence that layers read (``Block.cross``), such as the text to translate.

    Attributes:
      vectors: [B, S, D]; None in a step of generation, where the layers have kept the keys and values.
      visible: which of its tokens a query sees, with ``queries``.
    """

    vectors: jax.Array | None
    visible: Visible


class Memory(NamedTuple):
    """Says that each layer keeps its keys and values, in the collection "memory" of the model's variables.

    Attributes:
      slots: [B, S] of any dtype: a layer has S slots, a token each.
      first: [] int32, the slot of the first token of the batch, whose keys and values join those that were kept. None:
        the batch is a prompt, which fills the first slots, and the layer reads the prompt alone.
    """

    slots: jax.Array
    first: jax.Array | None = None


class Relative(NamedTuple):
    """What layers with ``Block.relative`` read besides (``models.relative``). R distances, M positions of the past.

    Attributes:
      distances: [1, R, D] the vectors of distances: of K keys, the largest, K - 1, comes first.
      biases: u and v [H, head_dim], if all layers share them.
      past: [B, N, M, D] what each layer read at the M positions before the row, whose keys come first; [B, M, D] for
        one layer; None: there are none.
      alike: [B, Q, K] whether query and key are of one segment; None: all are.
      places: [B, P] the positions of the last P vectors, which are queries alone; None: all vectors are keys too.
    """

    distances: jax.Array
    biases: tuple[jax.Array, jax.Array] | None = None
    past: jax.Array | None = None
    alike: jax.Array | None = None
    places: jax.Array | None = None


class Context(NamedTuple):
    """The arguments of a layer besides its vectors.

    Attributes:
      visible: who sees whom in a whole sequence; a layer with a window narrows it.
      rotations: base of rotary positions -> its rotation.
      source: what a layer with ``Block.cross`` reads besides.
      memory: None: nothing is kept.
      relative: what a layer with ``Block.relative`` reads besides.
    """

    visible: Visible
    rotations: dict[float, Rotation]
    source: Source | None = None
    memory: Memory | None = None
    relative: Relative | None = None

    def of_layer(self, index: int | jax.Array) -> Context:
        """Return the context of layer ``index``, which has the past of this layer alone."""
        if self.relative is None or self.relative.past is None:
            return self
        past = jax.lax.dynamic_index_in_dim(self.relative.past, index, 1, keepdims=False)
        return self._replace(relative=self.relative._replace(past=past))


class Attention(nn.Module):
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
        heads = (("heads", config.num_heads), ("head_dim", config.head_dim))
        if block.fused:
            dense = Dense(config, self._embed, ((None, 3), *heads), bias=config.biases, name="qkv")
            query, key, value = (jnp.squeeze(factor, 2) for factor in jnp.split(dense(x), 3, axis=2))
        else:
            query, key, value = (self._factor(name, x) for name in ("query", "key", "value"))
        query, key, value = (  # each [B, L, H, head_dim]
            constrain(factor, *AXES) for factor in (query, key, value)
        )
        if block.rotation is not None:
            query, key = (rotate(factor, context.rotations[block.rotation]) for factor in (query, key))
        self.sow("intermediates", "factors", (query, key))  # does nothing unless the caller asks for intermediates
        if context.memory is not None:
            key, value = self._keep(key, value, context.memory)
        return self._mixed((query, key, value), context.visible.within(block.window), rng)

    @property
    def _biases(self) -> bool:
        """Whether the dense layers have biases."""
        return self.config.biases

    @property
    def _embed(self) -> tuple[tuple[str, int]]:
        return (("embed", self.config.hidden_size),)

    def _factor(self, name: str, x: jax.Array) -> jax.Array:
        """Return the queries, keys or values [B, L, H, head_dim] for x [B, L, D]."""
        heads = (("heads", self.config.num_heads), ("head_dim", self.config.head_dim))
        return Dense(self.config, self._embed, heads, bias=self._biases, name=name)(x)  # type: ignore[no-any-return]

    def _mixed(self, factors: Factors, visible: Visible, rng: RowRng | None) -> jax.Array:
        """Return the output [B, Q, D] for query, key and value."""
        config = self.config
        return self._output(attend(factors, visible, config.attention_dropout_rate, rng, config.attention_kernel))

    def _output(self, mixed: jax.Array) -> jax.Array:
        """Return [B, Q, D] for the result of attention [B, Q, H, head_dim]."""
        config, heads = self.config, (("heads", self.config.num_heads), ("head_dim", self.config.head_dim))
        dense = Dense(config, heads, self._embed, bias=self._biases, scale=self.block.output_scale, name="output")
        return dense(mixed)  # type: ignore[no-any-return]

    def _keep(self, key: jax.Array, value: jax.Array, memory: Memory) -> tuple[jax.Array, jax.Array]:
        """Keep the keys and values [B, L, H, head_dim] in their slots; return those that a query may read."""
        shape = (*memory.slots.shape, *key.shape[2:])
        kept = [self.variable("memory", f"kept_{name}", jnp.zeros, shape, key.dtype) for name in ("key", "value")]
        for variable, new in zip(kept, (key, value), strict=True):
            first = 0 if memory.first is None else memory.first
            variable.value = jax.lax.dynamic_update_slice_in_dim(variable.value, new, first, axis=1)
        return (key, value) if memory.first is None else (kept[0].value, kept[1].value)


class CrossAttention(Attention):
    """Attention whose keys and values are made of another sequence (Vaswani et al. 2017, section 3.2.3)."""

    @nn.compact
    def __call__(self, x: jax.Array, context: Context, rng: RowRng | None) -> jax.Array:
        """Return [B, Q, D] for x [B, Q, D]; ``context.source`` says what is read."""
        source, memory = context.source, context.memory
        assert source is not None, "a layer with Block.cross has no source"
        query = constrain(self._factor("query", x), *AXES)
        if source.vectors is None:
            kept = [self.variable("memory", name, _never_kept) for name in ("source_key", "source_value")]
            key, value = (variable.value for variable in kept)
        else:
            vectors = source.vectors
            key, value = (constrain(self._factor(name, vectors), *AXES) for name in ("key", "value"))
            if memory is not None:
                self.variable("memory", "source_key", lambda: key)
                self.variable("memory", "source_value", lambda: value)
        return self._mixed((query, key, value), source.visible, rng and rng.site("cross_attention"))


def _never_kept() -> jax.Array:
    raise AssertionError("a step of generation reads a source whose keys were never kept: run the prompt first")
