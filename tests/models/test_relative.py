"""Relative attention beside explicit loops over queries and keys, and what layers share."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from bert_jax.errors import UserError
from bert_jax.models import relative
from bert_jax.models.attention import Context
from bert_jax.models.config import Block
from bert_jax.models.encoders import bert, transformer_xl
from bert_jax.models.masks import Visible
from bert_jax.models.relative import RelativeAttention, RelativeConfig, by_key, by_places, by_rows, sinusoids
from tests.models.helpers import random_params

HEADS, WIDTH = 2, 4
SIZES: dict[str, Any] = {"vocab_size": 40, "hidden_size": 8, "num_layers": 1, "num_heads": HEADS, "mlp_dim": 16}


@dataclasses.dataclass(frozen=True)
class Config(RelativeConfig):
    """Layers with biases of their own, in both directions."""

    @property
    def blocks(self) -> tuple[Block, ...]:
        return (Block(relative="own"),) * self.num_layers


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize(("length", "keys"), [(1, 1), (1, 4), (4, 4), (5, 8)])
def test_the_shift_is_a_double_loop(length: int, keys: int, both: bool) -> None:
    """Each score is looked up by its distance; without later keys, what would be after a query is any number."""
    distances = list(range(keys - 1, -length if both else -1, -1))
    scores = np.random.default_rng(0).normal(size=(2, 3, length, len(distances))).astype(np.float32)
    found = np.asarray(by_key(jnp.asarray(scores), keys))
    places = np.stack([np.arange(length), np.arange(length)[::-1]])
    taken = by_places(jnp.asarray(scores), jnp.asarray(places), jnp.arange(length - keys, length)[None])
    in_rows = np.asarray(by_rows(jnp.asarray(scores), jnp.asarray(places), length, keys))
    assert found.shape == taken.shape == in_rows.shape == (2, 3, length, keys)
    for i in range(length):
        for j in range(keys):
            distance = i + keys - length - j
            if distance in distances:
                wanted = scores[:, :, :, distances.index(distance)]
                assert np.array_equal(found[:, :, i, j], wanted[:, :, i])
                assert np.array_equal(taken[0, :, i, j], wanted[0, :, i])
                assert np.array_equal(taken[1, :, length - 1 - i, j], wanted[1, :, length - 1 - i])
                assert np.array_equal(in_rows[0, :, i, j], wanted[0, :, i])
                assert np.array_equal(in_rows[1, :, length - 1 - i, j], wanted[1, :, length - 1 - i])


def test_the_vector_of_a_distance() -> None:
    """Sines, then cosines, of the distance over 10000^(2i / D), from the largest distance on (section 3.3)."""
    found = sinusoids(3, -2, 8, jnp.dtype("float32"))
    wanted = [
        [f(distance / 10000 ** (2 * i / 8)) for f in (np.sin, np.cos) for i in range(4)]
        for distance in (3, 2, 1, 0, -1, -2)
    ]
    np.testing.assert_allclose(found[0], wanted, atol=1e-6)


def attended(params: Any, x: np.ndarray, past: np.ndarray, batch: Any) -> np.ndarray:
    """Attention of one row by loops: the terms (a) to (d) of section 3.3, and XLNet's term of segments."""
    kernels = {name: np.asarray(params[name]["kernel"]) for name in ("query", "key", "value", "distance", "output")}
    length, read = len(batch["token_type_ids"]), np.concatenate([past, x[: len(batch["token_type_ids"])]])
    places = [*range(length), *batch["query_positions"]]
    ranks = np.array(batch["order_ids"])
    result = np.zeros((len(x), x.shape[1]))
    for number, place in enumerate(places):
        q = np.einsum("d,dhk->hk", x[number], kernels["query"])
        scores, values = [], []
        for j in range(-len(past), length):
            if j >= 0 and not (ranks[j] < ranks[place] or (number < length and ranks[j] == ranks[place])):
                continue
            if j < 0 and not batch["past_mask"][j]:
                continue
            k, v = (np.einsum("d,dhk->hk", read[j + len(past)], kernels[name]) for name in ("key", "value"))
            angle = (place - j) / 10000 ** (np.arange(0, x.shape[1], 2) / x.shape[1])
            r = np.einsum("d,dhk->hk", np.concatenate([np.sin(angle), np.cos(angle)]), kernels["distance"])
            segment = int(batch["token_type_ids"][place] != (batch["token_type_ids"][j] if j >= 0 else 0))
            terms = q * k + q * r + params["content_bias"] * k + params["distance_bias"] * r
            terms = terms + (q + params["segment_bias"]) * params["segment_embeddings"][segment]
            scores.append(terms.sum(-1) / np.sqrt(WIDTH))
            values.append(v)
        if scores:
            weights = np.exp(scores) / np.exp(scores).sum(0)
            mixed = np.einsum("jh,jhk->hk", weights, values)
            result[number] = np.einsum("hk,hkd->d", mixed, kernels["output"])
    return result


def computed(batch: dict[str, Any], x: np.ndarray) -> tuple[Any, np.ndarray]:
    """Return random parameters of attention, and its result [B, Q, D] for x; call this with 64 bits."""
    config, rng = Config(**SIZES, dtype="float64"), np.random.default_rng(1)
    attention = RelativeAttention(config, config.blocks[0])

    def context_of(batch: Any) -> Context:
        visible = Visible(batch["attention_mask"], order_ids=batch["order_ids"])
        return relative.with_distances(config, batch, Context(visible, {}), None).of_layer(0)

    arrays = {name: jnp.asarray(value) for name, value in batch.items()}
    shapes = jax.eval_shape(lambda: attention.init(jax.random.key(0), jnp.asarray(x), context_of(arrays), None))
    params = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), nn.unbox(shapes["params"]))
    run = jax.jit(lambda batch, x: attention.apply({"params": params}, x, context_of(batch), None))
    return params, np.asarray(run(arrays, jnp.asarray(x)))


@pytest.mark.parametrize("num_past", [0, 3])
def test_every_term_beside_loops(num_past: int) -> None:
    """Two rows of unlike orders, one of whose memories is not full, with a query stream; float64: 1e-12."""
    rng = np.random.default_rng(0)
    batch: dict[str, Any] = {
        "input_ids": np.ones((2, 5), int),
        "attention_mask": np.ones((2, 5), int),
        "order_ids": np.array([[-1, 2, -1, 0, 1], [1, -1, 0, -1, 3]]),
        "query_positions": np.array([[4, 1, 3], [0, 4, 0]]),
        "token_type_ids": np.array([[0, 0, 1, 1, 2], [0, 1, 1, 1, 2]]),
        "past_mask": np.array([[1, 1, 1], [0, 1, 1]])[:, :num_past],
        "past_states": rng.normal(size=(2, 1, num_past, 8)),
    }
    given = batch if num_past else {name: value for name, value in batch.items() if not name.startswith("past_")}
    x = rng.normal(size=(2, 8, 8))
    with jax.enable_x64(True):
        params, found = computed(given, x)
    for row in range(2):
        of_row = {name: value[row] for name, value in batch.items()}
        wanted = attended(params, x[row], batch["past_states"][row, 0], of_row)
        np.testing.assert_allclose(found[row], wanted, atol=1e-12)


def test_a_query_that_sees_no_key_gets_zeros() -> None:
    """It is no mixture of the keys that are hidden."""
    ids = np.ones((1, 4), int)
    queries = {"order_ids": np.arange(4)[None], "query_positions": np.array([[0, 1, 0]]), "token_type_ids": 0 * ids}
    with jax.enable_x64(True):
        _, found = computed(
            {"input_ids": ids, "attention_mask": ids, **queries}, np.random.default_rng(0).normal(size=(1, 7, 8))
        )
    assert np.array_equal(np.any(found[0] != 0, axis=-1), [True, True, True, True, False, True, False])


def test_bad_settings_are_refused_in_one_line() -> None:
    for fields, said in (
        ({"hidden_size": 9, "num_heads": 3}, "config.model.hidden_size is 9; an even number is needed"),
        ({"memory_length": -1}, "config.model.memory_length is -1; 0 to 4,194,304 are allowed"),
        ({"attention_kernel": "flash"}, "'auto' and 'plain' are allowed: no kernel computes relative attention"),
        ({"span": "same length"}, "config.model.span is 'same length', and memory_length is 0: a token sees so many"),
    ):
        with pytest.raises(UserError, match=said) as error:
            transformer_xl.Config(**{**SIZES, **fields})
        assert "\n" not in str(error.value)


def test_other_layers_read_no_distances() -> None:
    attention = random_params(bert.Config(**SIZES))["encoder"]["layer_0"]["attention"]
    assert set(attention) == {"query", "key", "value", "output"}
