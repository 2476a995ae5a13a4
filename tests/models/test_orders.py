"""Who sees whom, said by one number a position (``order_ids``), and queries that are other tokens than the keys."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.models import masks
from bert_jax.models.dropout import RowRng
from bert_jax.models.encoders import bert, modernbert
from bert_jax.models.kernels import plain
from bert_jax.models.masks import Queries, Visible
from bert_jax.models.model import Model
from tests.models.helpers import random_params

LENGTH = 10
SIZES = {"vocab_size": 40, "hidden_size": 16, "num_layers": 3, "num_heads": 2, "mlp_dim": 24, "max_length": 16}
CONFIGS = {
    "bert": bert.Config(**SIZES),
    "modernbert": modernbert.Config(**SIZES, local_attention=4),
    "scanned modernbert": modernbert.Config(**{**SIZES, "num_layers": 4}, local_attention=4, layers="scanned"),
}
PLACES = np.arange(LENGTH)
ORDERS = {
    "both sides": np.zeros(LENGTH, int),
    "left to right": PLACES,
    "right to left": -PLACES,
    "prefix": np.maximum(PLACES - 3, 0),
}
PACKED = np.array([1, 1, 1, 1, 1, 1, 2, 2, 2, 0])


def batch_of(order: np.ndarray, ids: np.ndarray) -> dict[str, Any]:
    places = np.where(ids == 2, PLACES - 6, PLACES)
    tokens = np.random.default_rng(0).integers(1, 40, (1, LENGTH))
    features = {
        "input_ids": tokens,
        "token_type_ids": tokens * 0,
        "attention_mask": (ids > 0)[None],
        "sequence_ids": ids[None],
        "position_ids": places[None],
        "order_ids": order[None],
    }
    return {name: jnp.asarray(x, jnp.int32) for name, x in features.items()}


def seen_through_layers(config: Any, order: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Which token each output may depend on, [L, L], by the rules of each layer."""
    through = np.eye(LENGTH, dtype=bool)
    for block in config.blocks:
        seen = (order[None, :] <= order[:, None]) & (ids[None, :] == ids[:, None]) & (ids[None, :] > 0)
        if block.window is not None:
            seen &= np.abs(PLACES[None, :] - PLACES[:, None]) <= block.window
        through = (seen | np.eye(LENGTH, dtype=bool)).astype(int) @ through > 0
    return through


# Of a BERT, tests/objectives/test_unilm.py compares the same orders; scanned layers are of the same form.
@pytest.mark.parametrize(
    "name", ["scanned modernbert", *(pytest.param(one, marks=pytest.mark.heavy) for one in ("bert", "modernbert"))]
)
def test_an_output_depends_on_what_it_sees_and_on_nothing_else(name: str) -> None:
    """Every order, packed and padded, several layers deep: each token is replaced, and each output compared."""
    config = CONFIGS[name]
    model = Model(config)
    params = {"encoder": random_params(config)["encoder"]}
    run = jax.jit(lambda batch: model.apply({"params": params}, batch)["sequence"])
    for order in ORDERS.values():
        for ids in (PACKED, np.where(PLACES < 8, 1, 0)):
            batch = batch_of(order, ids)
            rows = {name: jnp.repeat(x, LENGTH + 1, axis=0) for name, x in batch.items()}
            tokens = np.array(rows["input_ids"])
            tokens[PLACES + 1, PLACES] = tokens[PLACES + 1, PLACES] % 39 + 1  # another token
            found = np.asarray(run({**rows, "input_ids": jnp.asarray(tokens)}))
            change = np.abs(found[1:] - found[:1]).max(-1).T  # [output, token]
            real = ids > 0
            seen = seen_through_layers(config, order, ids)
            assert np.all(change[real][:, real][~seen[real][:, real]] == 0)
            assert np.all(change[real][:, real][seen[real][:, real]] > 1e-5)
            assert np.all(change[real][:, ~real] == 0)


def test_growing_numbers_are_a_causal_model() -> None:
    batch = batch_of(PLACES, PACKED)
    causal, both = bert.Config(**SIZES, attention="causal"), bert.Config(**SIZES)
    params = {"encoder": random_params(both)["encoder"]}
    without = {name: x for name, x in batch.items() if name != "order_ids"}
    ordered, expected = (
        jax.jit(Model(config).apply)({"params": params}, x)["sequence"]
        for config, x in ((both, batch), (causal, without))
    )
    assert np.array_equal(ordered, expected)


def test_all_forms_of_attention_keep_the_order() -> None:
    """Packed rows of 150 positions; gradients and dropout too."""
    length, rng = 150, np.random.default_rng(2)
    ids = jnp.asarray(np.where(np.arange(length) < 80, 1, np.where(np.arange(length) < 140, 2, 0))[None], jnp.int32)
    order = jnp.asarray(rng.integers(0, 4, (1, length)), jnp.int32)
    factors = tuple(jnp.asarray(rng.normal(size=(1, length, 2, 8)), jnp.float32) for _ in range(3))
    dropped = RowRng.create(3, 5, jnp.arange(1))
    visible = Visible((ids > 0).astype(jnp.int32), ids, order_ids=order, window=20)

    @functools.partial(jax.jit, static_argnums=0)
    def run(form: Any, *factors: jax.Array) -> Any:
        out, backward = jax.vjp(lambda *f: form(f, visible, 0.1, dropped), *factors)
        real = (ids > 0)[..., None, None]
        return [x * real for x in (out, *backward(real * factors[0]))]

    expected = run(plain.dense, *factors)
    for form in (functools.partial(plain.chunked, size=40), plain.local):
        for one, other in zip(run(form, *factors), expected, strict=True):
            np.testing.assert_allclose(one, other, atol=2e-5)


def test_queries_of_another_length() -> None:
    """3 queries of two sources of 5 and 2 tokens: dense and chunked, beside a softmax over the source's tokens."""
    rng = np.random.default_rng(1)
    query = jnp.asarray(rng.normal(size=(1, 3, 2, 4)), jnp.float32)
    key, value = (jnp.asarray(rng.normal(size=(1, 8, 2, 4)), jnp.float32) for _ in range(2))
    ids = jnp.array([[1, 1, 1, 1, 1, 2, 2, 0]])
    of_queries = jnp.array([[1, 2, 1]])
    visible = Visible(ids > 0, ids, queries=Queries(of_queries, jnp.arange(3)[None]))
    for form in (plain.dense, plain.chunked, plain.plain):
        out = jax.jit(lambda *f, form=form: form(f, visible, 0.0, None))(query, key, value)
        for number, one in enumerate(of_queries[0]):
            own = np.asarray(ids[0] == one)
            scores = np.einsum("hd,khd->hk", query[0, number], key[0, own]) / 2
            weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
            np.testing.assert_allclose(out[0, number], np.einsum("hk,khd->hd", weights, value[0, own]), atol=1e-6)


def test_the_matrix_of_a_prefix_is_as_drawn() -> None:
    h = masks.HIDDEN
    seen = Visible(jnp.array([[1, 1, 1, 1, 0]]), order_ids=jnp.array([[0, 0, 1, 2, 0]]))
    drawn = [[0, 0, h, h, h], [0, 0, h, h, h], [0, 0, 0, h, h], [0, 0, 0, 0, h], [0, 0, h, h, h]]
    assert np.array_equal(masks.bias(seen)[0, 0], drawn)
