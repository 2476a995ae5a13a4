"""The stochastic answer network against its equations in numpy, and what it must not depend on."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from bert_jax.models.dropout import RowRng
from bert_jax.models.san import StochasticAnswer
from tests.models.helpers import tiny

B, L, D, K = 3, 9, 6, 4
TYPES = np.array([[0, 0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 0, 0, 0, 0, 0]], np.int32)
MASK = (np.arange(L) < np.array([[9], [6], [4]])).astype(np.int32)
BATCH = {"token_type_ids": TYPES, "attention_mask": MASK}
X = np.random.default_rng(0).normal(size=(B, L, D))


def head(steps: int = 5, **options: Any) -> StochasticAnswer:
    return StochasticAnswer(tiny(hidden_size=D, num_heads=2, dtype="float64"), K, steps, **options)


def params_of(model: StochasticAnswer, seed: int = 1) -> Any:
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), {"sequence": X}, BATCH, None))
    fresh = nn.unbox(shapes)["params"]
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: rng.normal(0, 0.7, leaf.shape), fresh)


def run(model: StochasticAnswer, params: Any, x: np.ndarray = X, rng: RowRng | None = None) -> np.ndarray:
    return np.asarray(jax.jit(model.apply)({"params": params}, {"sequence": x}, BATCH, rng)["logits"])


@pytest.fixture(autouse=True)
def exact() -> Any:
    with jax.enable_x64(True):
        yield


def softmax(a: np.ndarray) -> np.ndarray:
    return np.exp(a - a.max()) / np.exp(a - a.max()).sum()


def shares(params: Any, row: int, steps: int) -> np.ndarray:
    """The probabilities of each step for one row, [steps, K], by loops over vectors."""
    premise = [X[row, i] for i in range(L) if MASK[row, i] and TYPES[row, i] == 0]
    hypothesis = [X[row, i] for i in range(L) if MASK[row, i] and TYPES[row, i] == 1]
    dense = {name: (params[name]["kernel"], params[name]["bias"]) for name in ("pooling", "attention", "dense")}
    weights = softmax(np.array([(h @ dense["pooling"][0] + dense["pooling"][1])[0] for h in hypothesis]))
    s, gru, found = sum(w * h for w, h in zip(weights, hypothesis, strict=True)), params["gru"], []
    for _ in range(steps):
        query = s @ dense["attention"][0] + dense["attention"][1]
        weights = softmax(np.array([p @ query for p in premise]))
        x = sum(w * p for w, p in zip(weights, premise, strict=True))
        both = np.concatenate([s, x, abs(s - x), s * x])
        found.append(softmax(both @ dense["dense"][0] + dense["dense"][1]))
        a, b = x @ gru["kernel"] + gru["bias"], s @ gru["recurrent_kernel"] + gru["recurrent_bias"]
        r, z = (1 / (1 + np.exp(-(a[n * D : (n + 1) * D] + b[n * D : (n + 1) * D]))) for n in (0, 1))
        s = (1 - z) * np.tanh(a[2 * D :] + r * b[2 * D :]) + z * s
    return np.array(found)


@pytest.mark.parametrize("steps", [1, 5])
def test_it_is_the_equations(steps: int) -> None:
    params = params_of(head(steps))
    expected = [np.log(shares(params, row, steps).mean(axis=0)) for row in range(B)]
    np.testing.assert_allclose(run(head(steps), params), expected, atol=1e-12)


def test_one_step_is_one_attention_pooling() -> None:
    """With scores of 0 it is the plain mean of each text, and a dense layer on both."""
    params = params_of(head(1))
    params = params | {name: jax.tree.map(np.zeros_like, params[name]) for name in ("pooling", "attention")}
    s, x = ((X * w[..., None]).sum(axis=1) / w.sum(axis=1)[:, None] for w in (MASK * TYPES, MASK * (1 - TYPES)))
    scores = np.concatenate([s, x, abs(s - x), s * x], axis=1) @ params["dense"]["kernel"] + params["dense"]["bias"]
    expected = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(run(head(1), params), expected, atol=1e-12)


def test_only_the_members_of_each_text_count() -> None:
    """Their order within a text does not, and padding is not read; a token of the other text is not the same."""
    params = params_of(head())
    before = run(head(), params)
    moved = X.copy()
    moved[0, [0, 1, 2, 3, 4]] = X[0, [3, 0, 4, 2, 1]]
    moved[0, [5, 6, 7, 8]] = X[0, [8, 7, 5, 6]]
    moved[1, 6:], moved[2, 4:] = 100.0, -7.0
    np.testing.assert_allclose(run(head(), params, moved), before, atol=1e-12)
    crossed = X.copy()
    crossed[0, [4, 5]] = X[0, [5, 4]]
    assert np.abs(run(head(), params, crossed) - before)[0].max() > 1e-3


def test_the_mean_is_over_the_steps_that_stay() -> None:
    """Each step with probability 0.9, one of them surely; the log of a mean of probabilities is one of each subset."""
    model = head(step_dropout_rate=0.5)
    params = params_of(model)
    every, counts = shares(params, 0, 5), np.zeros(6)
    subsets = {
        tuple(np.log(every[list(kept)].mean(axis=0)).round(9)): kept
        for kept in ([i for i in range(5) if number >> i & 1] for number in range(1, 32))
    }
    rows = 400
    batch = {name: np.repeat(value[:1], rows, axis=0) for name, value in BATCH.items()}
    rng = RowRng.create(3, 7, jnp.arange(rows))
    found = jax.jit(model.apply)({"params": params}, {"sequence": np.repeat(X[:1], rows, axis=0)}, batch, rng)["logits"]
    steps = np.zeros(5)
    for row in np.asarray(found):
        kept = subsets[tuple(row.round(9))]
        counts[len(kept)] += 1
        steps[kept] += 1
    assert counts[0] == 0
    kept_rate = 0.2 + 0.8 * 0.5
    assert np.abs(steps / rows - kept_rate).max() < 4 * np.sqrt(kept_rate * (1 - kept_rate) / rows)


def test_gradients_are_finite_with_every_dropout() -> None:
    model = head(dropout_rate=0.3, step_dropout_rate=0.9)
    params, rng = params_of(model), RowRng.create(0, 1, jnp.arange(B))

    def loss(params: Any, x: jax.Array) -> jax.Array:
        return -jnp.sum(model.apply({"params": params}, {"sequence": x}, BATCH, rng)["logits"][:, 0])  # type: ignore[index]

    of_params, of_x = jax.jit(jax.grad(loss, argnums=(0, 1)))(params, 30 * X)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((of_params, of_x)))
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(of_params) if leaf.shape != (1,))
    assert np.all(np.asarray(of_x)[MASK == 0] == 0)


def test_dropout_follows_the_rows() -> None:
    """A row has the same dropout wherever it is computed, as two micro-batches do; another row or step has another."""
    model = head(dropout_rate=0.3)
    params, ids = params_of(model), jnp.arange(4, 4 + B)
    whole = run(model, params, rng=RowRng.create(0, 1, ids))
    batch = {name: value[1:] for name, value in BATCH.items()}
    part = jax.jit(model.apply)({"params": params}, {"sequence": X[1:]}, batch, RowRng.create(0, 1, ids[1:]))["logits"]
    np.testing.assert_allclose(part, whole[1:], atol=1e-12)
    for other in (RowRng.create(0, 2, ids), RowRng.create(0, 1, ids + 1)):
        assert np.abs(run(model, params, rng=other) - whole).max() > 1e-3
