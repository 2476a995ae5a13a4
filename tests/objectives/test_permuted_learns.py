"""What a random order is for: two hidden tokens that depend on each other, such as New York and Los Angeles.

Toy text: ``go first second stop``, one of some pairs of a first and a second word. With both words hidden, nothing says
which pair it is. With masks a model can only say how common each word is; in an order, the second word that it predicts
depends on the first.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

from bert_jax.losses.cross_entropy import cross_entropy
from bert_jax.models.encoders import xlnet
from bert_jax.models.model import LM_HEAD, Model
from bert_jax.objectives.permuted import order

GO, STOP, MASK, FIRST = 1, 2, 3, 4
LENGTH, ROWS = 4, 64
BOTH = np.array([1, 2], np.int32)  # the places of the pair


def text(rng: np.random.Generator, pairs: int, rows: int) -> np.ndarray:
    which = rng.integers(pairs, size=(rows, 1))
    return np.concatenate([0 * which + GO, FIRST + which, FIRST + pairs + which, 0 * which + STOP], axis=1)


def hide(ids: Any, places: Any, how: str, draws: Any) -> dict[str, Any]:
    """The features of rows [B, L] whose ``places`` [B, P] are predicted, with masks or in the order of ``draws``."""
    hidden = (jnp.arange(LENGTH)[None, None] == places[..., None]).any(axis=1)
    batch = {"input_ids": ids, "attention_mask": jnp.ones_like(ids), "token_type_ids": jnp.zeros_like(ids)}
    batch |= {"masked_positions": places}
    if how == "masks":
        return batch | {"input_ids": jnp.where(hidden, MASK, ids)}
    at = jnp.broadcast_to(jnp.arange(LENGTH), ids.shape)
    return batch | {"query_positions": places, "order_ids": order(draws, hidden, at, jnp.zeros_like(ids[:, :1]), None)}


@functools.cache
def joint_loss(how: str, seed: int, pairs: int, steps: int) -> float:
    """Train, hide both words of held-out rows, and return the mean of -log p(first, second), in nats."""
    size = FIRST + 2 * pairs
    rates = {"dropout_rate": 0.0, "attention_dropout_rate": 0.0}
    config = xlnet.Config(size, 32, 1, 2, 64, max_length=LENGTH, initializer_range=0.1, **rates)
    model, rng = Model(config, (LM_HEAD,)), np.random.default_rng(seed)
    optimizer = optax.adam(optax.linear_schedule(1e-2, 0.0, steps))

    def losses(params: Any, batch: Any, labels: Any) -> jax.Array:
        logits: Any = model.apply({"params": params}, batch)["mlm_logits"]  # type: ignore[index,call-overload]
        return cross_entropy(logits, labels, jnp.ones(labels.shape))[0].value / len(labels)

    def drawn(*shape: int) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Rows, two of their four places, and numbers that order them."""
        places = np.argsort(rng.random((*shape, LENGTH)), axis=-1)[..., :2]
        rows = text(rng, pairs, int(np.prod(shape))).reshape(*shape, LENGTH)
        return *map(jnp.int32, (rows, places)), jnp.int32(rng.integers(2**31, size=(*shape, LENGTH)))

    @jax.jit
    def learn(params: Any, every: Any) -> Any:
        def step(carry: Any, batch: Any) -> Any:
            (params, state), (ids, places, draws) = carry, batch
            labels = jnp.take_along_axis(ids, places, axis=1)
            gradient = jax.grad(losses)(params, hide(ids, places, how, draws), labels)
            updates, state = optimizer.update(gradient, state)
            return (optax.apply_updates(params, updates), state), None

        return jax.lax.scan(step, (params, optimizer.init(params)), every)[0][0]

    ids, places, draws = drawn(steps, ROWS)
    first = hide(ids[0], places[0], how, draws[0])
    params = learn(nn.unbox(jax.jit(model.init)(jax.random.key(seed), first))["params"], (ids, places, draws))
    ids, _, draws = drawn(512)
    batch = hide(ids, jnp.broadcast_to(BOTH, (512, 2)), how, draws)
    return float(jax.jit(losses)(params, batch, ids[:, 1:3]))


def test_two_words_are_one_choice_in_an_order_and_two_with_masks() -> None:
    """New York or Los Angeles: log 2 nats for the pair in an order; with masks log 2 for each word."""
    assert joint_loss("masks", 0, 2, 300) == pytest.approx(2 * np.log(2), abs=0.05)
    assert joint_loss("order", 0, 2, 300) == pytest.approx(np.log(2), abs=0.05)


@pytest.mark.heavy
def test_an_order_learns_the_joint_likelihood_of_many_pairs() -> None:
    """Eight pairs, three seeds: log 8 nats a pair, and twice as many with masks, up to a tenth of the difference."""
    masks, ordered = (np.array([joint_loss(how, seed, 8, 1_000) for seed in range(3)]) for how in ("masks", "order"))
    print(f"\n-log p of a pair: masks {masks.round(3)}, order {ordered.round(3)}; log 8 is {np.log(8):.3f}")
    np.testing.assert_allclose(masks, 2 * np.log(8), atol=0.1 * np.log(8))
    np.testing.assert_allclose(ordered, np.log(8), atol=0.1 * np.log(8))
