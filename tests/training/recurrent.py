"""An encoder with memory, for tests: a small causal Transformer that knows places by their distance alone."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.models.config import ModelConfig
from bert_jax.models.encoders.gpt2 import LmHead as LmHead
from bert_jax.models.encoders.gpt2 import Pooler as Pooler
from bert_jax.models.encoding import Encoding
from bert_jax.models.primitives import normal, with_axes
from bert_jax.records import Batch, Feature


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(ModelConfig):
    num_layers: int = 2
    memory_length: int = 0

    @property
    def causal(self) -> bool:
        return True


class Encoder(nn.Module):
    config: Config
    reads: ClassVar[frozenset[str]] = frozenset()

    @staticmethod
    def past(config: Config) -> dict[str, Feature]:
        length = config.memory_length
        states = Feature((config.num_layers, length, config.hidden_size), config.dtype)
        return {"past_states": states, "past_mask": Feature((length,), "int32")} if length else {}

    @nn.compact
    def __call__(self, batch: Batch, rng: Any = None, hidden_states: str = "last") -> Encoding:
        config, mask = self.config, batch["attention_mask"]
        size, (rows, length) = config.hidden_size, mask.shape

        def matrix(name: str, *axes: Any, shape: tuple[int, ...] = (size, size)) -> jax.Array:
            found: jax.Array = self.param(name, with_axes(normal(config), *axes), shape, config.param_dtype)
            return found

        table = matrix("word_embeddings", "vocab", "embed", shape=(config.vocab_size, size))
        before = batch.get("past_mask", jnp.zeros((rows, 0), jnp.int32))
        states = batch.get("past_states", jnp.zeros((rows, config.num_layers, 0, size), config.dtype))
        seen = jnp.concatenate([before, mask], axis=1)
        distance = before.shape[1] + jnp.arange(length)[:, None] - jnp.arange(seen.shape[1])[None]
        visible = (distance >= 0)[None] & (seen[:, None] > 0)
        x, kept = 5 * table[batch["input_ids"]], []
        for layer in range(config.num_layers):
            whole = jnp.concatenate([jax.lax.stop_gradient(states[:, layer]), x], axis=1)
            kept.append(whole[:, length:])
            sources = (x, whole, whole)
            q, k, v = (at @ matrix(f"{name}_{layer}", "embed", "mlp") for name, at in zip("qkv", sources, strict=True))
            scores = jnp.einsum("bid,bjd->bij", q, k) / math.sqrt(size) - 0.02 * distance[None]
            x += jax.nn.softmax(jnp.where(visible, scores, -1e9), axis=-1) @ v @ matrix(f"o_{layer}", "mlp", "embed")
            x += jnp.tanh(x @ matrix(f"mlp_{layer}", "embed", None))
        past = {"past_states": jnp.stack(kept, axis=1), "past_mask": seen[:, length:]} if "past_mask" in batch else None
        return Encoding(x, table, None, past)


SIZES: dict[str, dict[str, int]] = {"toy": {"hidden_size": 32}}
