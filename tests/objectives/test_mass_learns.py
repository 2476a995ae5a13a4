"""A decoder learns to copy and to reverse what the encoder reads, written out greedily with kept keys."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

from bert_jax.models.encoders import seq2seq
from bert_jax.models.model import LM_HEAD, Model

V, LENGTH, BEGIN, FIRST = 16, 8, 1, 3  # ids from FIRST on are text
CONFIG = seq2seq.Config(
    V, 64, 1, 4, 128, num_decoder_layers=1, max_length=16, dropout_rate=0.0, attention_dropout_rate=0.0
)
MODEL = Model(CONFIG, (LM_HEAD,))
TASKS = {"copy": 1, "reverse": -1}


def drawn(rng: np.random.Generator, count: int, way: int) -> tuple[np.ndarray, np.ndarray]:
    """Sources and targets [count, LENGTH]."""
    source = rng.integers(FIRST, V, (count, LENGTH))
    return source, source[:, ::way]


def features(source: Any, read: Any, **others: Any) -> dict[str, Any]:
    places = jnp.broadcast_to(jnp.arange(read.shape[1]), read.shape)
    return {
        "input_ids": source,
        "attention_mask": jnp.ones_like(source),
        "decoder_input_ids": read,
        "masked_positions": places,
        **others,
    }


@jax.jit
def written(params: Any, source: jax.Array) -> jax.Array:
    """What the model writes, greedily, [B, LENGTH]: the first token after a prompt, the others a step each."""
    rows = source.shape[0]
    ids = jnp.zeros((rows, LENGTH), jnp.int32).at[:, 0].set(1)
    positions = jnp.zeros_like(ids)
    prompt = features(source, jnp.full((rows, 1), BEGIN), memory_ids=ids)
    outputs, kept = MODEL.apply({"params": params}, prompt, mutable=["memory"])
    found = [jnp.argmax(outputs["mlm_logits"][:, 0], axis=-1)]  # type: ignore[index,call-overload]
    for place in range(1, LENGTH):
        ids, positions = ids.at[:, place].set(1), positions.at[:, place].set(place)
        memory = {"memory_ids": ids, "memory_positions": positions, "memory_slot": jnp.int32(place)}
        at = {"decoder_position_ids": jnp.full((rows, 1), place)}
        batch = features(source, found[-1][:, None], **memory, **at)
        outputs, kept = MODEL.apply({"params": params, **kept}, batch, mutable=["memory"])
        found.append(jnp.argmax(outputs["mlm_logits"][:, 0], axis=-1))  # type: ignore[index,call-overload]
    return jnp.stack(found, axis=1)


@pytest.mark.heavy
@pytest.mark.parametrize("name", TASKS)
def test_it_writes_unseen_sequences_exactly(name: str) -> None:
    """Above 0.95 of 512 sequences; a decoder that cannot read the encoder writes none."""
    rng, way = np.random.default_rng(0), TASKS[name]
    source, target = drawn(rng, 64, way)
    params = nn.unbox(jax.jit(MODEL.init)(jax.random.key(0), features(source, target)))["params"]
    rate = optax.warmup_cosine_decay_schedule(0.0, 3e-3, 100, 2_000)
    tx = optax.adam(rate, b2=0.98)

    @jax.jit
    def step(params: Any, state: Any, source: jax.Array, target: jax.Array) -> Any:
        def loss(params: Any) -> jax.Array:
            read = jnp.concatenate([jnp.full_like(target[:, :1], BEGIN), target[:, :-1]], axis=1)
            logits: Any = MODEL.apply({"params": params}, features(source, read))
            return optax.softmax_cross_entropy_with_integer_labels(logits["mlm_logits"], target).mean()

        value, gradient = jax.value_and_grad(loss)(params)
        updates, state = tx.update(gradient, state)
        return optax.apply_updates(params, updates), state, value

    state = jax.jit(tx.init)(params)
    for _ in range(2_000):
        params, state, value = step(params, state, *map(jnp.asarray, drawn(rng, 64, way)))
    source, target = drawn(np.random.default_rng(1), 512, way)
    exact = (np.asarray(written(params, jnp.asarray(source))) == target).all(axis=1).mean()
    assert exact > 0.95, f"loss {value}"
    other = np.roll(source, 1, axis=0)
    assert (np.asarray(written(params, jnp.asarray(other))) == target).all(axis=1).mean() < 0.05
