"""Steppers: the ways in which models write. A stepper gives the logits of the next token, given the tokens so far.

The layers keep the keys and values of the tokens that they have seen (the collection "memory", ``models.attention``),
so that a step computes new tokens alone. Steppers are functions of jax: they run inside ``jax.jit``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from bert_jax.models.config import ModelConfig, TransformerConfig
from bert_jax.models.model import LM_HEAD, Model
from bert_jax.models.primitives import activation_dtype
from bert_jax.text.tokenizer import Tokenizer

Prompt = Mapping[str, jax.Array]  # input_ids and attention_mask, [B, P], padded at the right
LEFT_TO_RIGHT, MASK_AT_END = "left to right", "mask at the end"  # what a model of both sides may have learned
UNILM_TYPES = (4, 5)  # of a source and of its target (Dong et al. 2019, section 2.3)
Variables = Mapping[str, Any]  # "params" of the encoder and the head


class State(NamedTuple):
    """The tokens that a model has seen.

    Attributes:
      memory: the keys and values that the layers keep; the axis of rows of each array is the fourth from the end.
      ids: [B, S] int32, 1 where a slot of the memory holds a token.
      positions: [B, S] int32, the position of the token in each slot.
      slot: [] int32, the slot of the next token. It is the same in all rows: a short prompt leaves slots empty.
      length: [B] int32, the number of tokens of each row, which is the position of the next token.
      source: [B, L], the attention mask of the text that a decoder reads; None if there is no decoder.
    """

    memory: Any
    ids: jax.Array
    positions: jax.Array
    slot: jax.Array
    length: jax.Array
    source: jax.Array | None = None

    def written(self, count: int) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return ids and positions of the slots, [B, S], with ``count`` new tokens, and their positions [B, count]."""
        places = self.length[:, None] + jnp.arange(count, dtype=jnp.int32)[None]
        update = jax.lax.dynamic_update_slice_in_dim
        ids = update(self.ids, jnp.ones_like(places), self.slot, axis=1)
        return ids, update(self.positions, places, self.slot, axis=1), places


class Stepper(Protocol):
    """A way to write. It is frozen and hashable, so that a jitted function may have it as a static argument.

    Attributes:
      goes_on: whether the new text goes on with the prompt, so that n-grams are counted in the prompt too; else the
        prompt is a source, whose words the new text may repeat.
    """

    @property
    def config(self) -> ModelConfig: ...

    @property
    def goes_on(self) -> bool: ...

    def history(self, prompt: Prompt) -> tuple[jax.Array, jax.Array]:
        """Return the tokens before the new text that n-grams are counted in: ids [B, H] and their number [B]."""
        ...

    def start(self, variables: Variables, prompt: Prompt, slots: int) -> tuple[jax.Array, State]:
        """Return the logits of the first new token, [B, V], and the state after the prompt.

        Args:
          slots: the number of tokens that the memory holds: P and the new tokens at least.
        """
        ...

    def step(self, variables: Variables, ids: jax.Array, state: State) -> tuple[jax.Array, State]:
        """Return the logits of the token after ``ids`` [B], and the state that has seen ``ids``."""
        ...


def reorder(state: State, rows: jax.Array) -> State:
    """Return the state whose row i is row ``rows[i]`` of ``state``; rows may repeat."""
    memory = jax.tree.map(lambda x: jnp.take(x, rows, axis=x.ndim - 4), state.memory)
    source = None if state.source is None else state.source[rows]
    return State(memory, state.ids[rows], state.positions[rows], state.slot, state.length[rows], source)


@dataclasses.dataclass(frozen=True)
class LeftToRight:
    """Writes with a model whose tokens see what came before (Radford et al. 2018, section 3.1).

    A model of both sides is run left to right by ``order_ids``; this has a meaning if it was trained so.
    """

    config: ModelConfig
    goes_on: bool = True

    def history(self, prompt: Prompt) -> tuple[jax.Array, jax.Array]:
        ids, length = prompt["input_ids"], _lengths(prompt)
        return (ids, length) if self.goes_on else (ids[:, :0], jnp.zeros_like(length))

    def start(self, variables: Variables, prompt: Prompt, slots: int) -> tuple[jax.Array, State]:
        ids, length = prompt["input_ids"], _lengths(prompt)
        order = {} if self.config.causal else {"order_ids": _places(ids)}
        batch = _features(ids, prompt["attention_mask"], length - 1, **order)
        return _first(self.config, variables, batch, length, slots)

    def step(self, variables: Variables, ids: jax.Array, state: State) -> tuple[jax.Array, State]:
        return _next(self.config, variables, ids[:, None], jnp.zeros_like(ids[:, None]), state)


@dataclasses.dataclass(frozen=True)
class MaskAtEnd:
    """Writes with a model that predicts a [MASK] after the tokens so far (UniLM; Dong et al. 2019, section 2.5).

    The tokens of the prompt see each other; a new token sees the prompt and the new tokens before it. A step computes
    the last token and a [MASK] after it, and the next step overwrites what was kept of the [MASK].

    Attributes:
      mask: the id of [MASK].
      types: the token types of the prompt and of the new tokens.
    """

    config: ModelConfig
    mask: int
    types: tuple[int, int] = (4, 5)  # as ``objectives.unilm``
    goes_on: ClassVar[bool] = False

    def history(self, prompt: Prompt) -> tuple[jax.Array, jax.Array]:
        ids = prompt["input_ids"]
        return ids[:, :0], jnp.zeros(len(ids), jnp.int32)

    def start(self, variables: Variables, prompt: Prompt, slots: int) -> tuple[jax.Array, State]:
        length = _lengths(prompt)[:, None]
        ids = jnp.concatenate([prompt["input_ids"], jnp.full_like(length, self.mask)], axis=1)
        present = jnp.concatenate([prompt["attention_mask"], jnp.ones_like(length)], axis=1)
        last = _places(ids) == ids.shape[1] - 1
        batch = _features(
            ids,
            present,
            jnp.full_like(length[:, 0], ids.shape[1] - 1),
            token_type_ids=jnp.where(last, self.types[1], self.types[0]),
            position_ids=jnp.where(last, length, _places(ids)),
            order_ids=last.astype(jnp.int32),
        )
        return _first(self.config, variables, batch, length[:, 0], slots, kept=ids.shape[1] - 1)

    def step(self, variables: Variables, ids: jax.Array, state: State) -> tuple[jax.Array, State]:
        pair = jnp.stack([ids, jnp.full_like(ids, self.mask)], axis=1)
        return _next(self.config, variables, pair, jnp.full_like(pair, self.types[1]), state)


@dataclasses.dataclass(frozen=True)
class Decoder:
    """Writes with a decoder that reads the prompt, a source, by cross-attention (Vaswani et al. 2017, section 3.1).

    Attributes:
      begin: the id of the token that the decoder reads first, at position 0.
    """

    config: ModelConfig
    begin: int
    goes_on: ClassVar[bool] = False

    def history(self, prompt: Prompt) -> tuple[jax.Array, jax.Array]:
        first = jnp.full_like(prompt["input_ids"][:, :1], self.begin)
        return first, jnp.ones(len(first), jnp.int32)

    def start(self, variables: Variables, prompt: Prompt, slots: int) -> tuple[jax.Array, State]:
        source = prompt["attention_mask"]
        first, _ = self.history(prompt)
        ids = jnp.pad(jnp.ones_like(first), ((0, 0), (0, slots - source.shape[1] - 1)))
        batch = _features(prompt["input_ids"], source, jnp.zeros_like(first[:, 0]))
        batch |= {"decoder_input_ids": first, "decoder_position_ids": jnp.zeros_like(first), "memory_ids": ids}
        outputs, memory = _model(self.config).apply(variables, batch, mutable=["memory"])
        one = jnp.array(1, jnp.int32)
        return _logits(outputs), State(memory, ids, jnp.zeros_like(ids), one, jnp.ones_like(first[:, 0]), source)

    def step(self, variables: Variables, ids: jax.Array, state: State) -> tuple[jax.Array, State]:
        assert state.source is not None, "a decoder has a source"
        kept, positions, places = state.written(1)
        batch = _features(jnp.zeros_like(state.source), state.source, jnp.zeros_like(ids))
        batch |= {"decoder_input_ids": ids[:, None], "decoder_position_ids": places}
        batch |= {"memory_ids": kept, "memory_positions": positions, "memory_slot": state.slot}
        outputs, memory = _model(self.config).apply({**variables, **state.memory}, batch, mutable=["memory"])
        after = State(memory, kept, positions, state.slot + 1, state.length + 1, state.source)
        return _logits(outputs), after


def keeping(config: ModelConfig) -> ModelConfig:
    """Return the config whose layers can keep keys and values: layers that share parameters do so if scanned."""
    if isinstance(config, TransformerConfig) and config.shares_layers:
        return dataclasses.replace(config, layers="scanned")
    return config


def stepper_of(config: ModelConfig, tokenizer: Tokenizer, ways: Collection[str]) -> Stepper | None:
    """Return the way in which a model writes; None if it does not.

    Args:
      ways: what a model that reads both sides has learned besides: ``LEFT_TO_RIGHT``, ``MASK_AT_END``.

    Raises ``UserError`` if the tokenizer lacks a token that the way needs.
    """
    if config.decodes:
        return Decoder(config, tokenizer.need("cls", "a decoder"))
    if config.causal or LEFT_TO_RIGHT in ways:
        return LeftToRight(config.reading("what came before") or config)
    if MASK_AT_END in ways:
        mask = tokenizer.need("mask", "a model that reads both sides, and writes by [MASK],")
        return MaskAtEnd(config, mask, token_types(config))
    return None


def token_types(config: ModelConfig) -> tuple[int, int]:
    """Return the token types of a source and of its target: UniLM's, if the model tells so many types apart."""
    known = config.type_vocab_size
    return UNILM_TYPES if known > max(UNILM_TYPES) else (0, int(known > 1))


def memory_bytes(config: ModelConfig, rows: int, slots: int, dtype: Any = None) -> int:
    """Return the bytes of the keys and values that a model's layers keep for rows of ``slots`` tokens.

    They are of ``dtype``, by default the dtype of vectors on this machine. The slots of a model with a decoder are the
    tokens of source and target, and the layers of the decoder keep both.
    """
    numbers = 2 * config.num_kept_layers * rows * slots * config.hidden_size
    return numbers * jnp.dtype(dtype or activation_dtype(config)).itemsize


def _lengths(prompt: Prompt) -> jax.Array:
    """Return the number of tokens in each row of a prompt, [B] int32."""
    return jnp.sum(prompt["attention_mask"] > 0, axis=1, dtype=jnp.int32)


def _places(ids: jax.Array) -> jax.Array:
    """Return the numbers of the columns of ids [B, L], [B, L] int32."""
    return jnp.broadcast_to(jnp.arange(ids.shape[1], dtype=jnp.int32)[None], ids.shape)


def _features(ids: jax.Array, present: jax.Array, predicted: jax.Array, **others: jax.Array) -> dict[str, jax.Array]:
    """Return the features of a batch, with ``predicted`` [B], the column from which the next token is predicted."""
    return {
        "input_ids": ids,
        "attention_mask": present,
        "token_type_ids": jnp.zeros_like(ids),
        "masked_positions": predicted[:, None],
        **others,
    }


def _first(
    config: ModelConfig,
    variables: Variables,
    batch: dict[str, jax.Array],
    length: jax.Array,
    slots: int,
    kept: int | None = None,
) -> tuple[jax.Array, State]:
    """Return the logits [B, V] of a prompt, and the state after its first ``kept`` columns (None: all)."""
    width = batch["input_ids"].shape[1] if kept is None else kept
    wide = ((0, 0), (0, slots - width))
    ids = jnp.pad((batch["attention_mask"][:, :width] > 0).astype(jnp.int32), wide)
    outputs, memory = _model(config).apply(variables, {**batch, "memory_ids": ids}, mutable=["memory"])
    positions = jnp.pad(_places(batch["input_ids"][:, :width]), wide)
    return _logits(outputs), State(memory, ids, positions, jnp.array(width, jnp.int32), length)


def _next(
    config: ModelConfig, variables: Variables, new: jax.Array, types: jax.Array, state: State
) -> tuple[jax.Array, State]:
    """Return the logits [B, V] of the last of the ``new`` tokens [B, Q], and the state after the first new token."""
    count = new.shape[1]
    ids, positions, places = state.written(count)
    batch = _features(new, jnp.ones_like(new), jnp.full_like(new[:, 0], count - 1), position_ids=places)
    batch |= {"token_type_ids": types, "memory_ids": ids, "memory_positions": positions, "memory_slot": state.slot}
    outputs, memory = _model(config).apply({**variables, **state.memory}, batch, mutable=["memory"])
    ids, positions, _ = state.written(1)
    return _logits(outputs), State(memory, ids, positions, state.slot + 1, state.length + 1)


def _model(config: ModelConfig) -> Model:
    return Model(config, (LM_HEAD,))


def _logits(outputs: Any) -> jax.Array:
    logits: jax.Array = outputs["mlm_logits"][:, 0]
    return logits
