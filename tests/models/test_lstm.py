"""One direction of an LSTM: projection and clipping against a loop in numpy, and its state across windows."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from bert_jax.models.lstm import Lstm, State

D, F, P, ROWS, LENGTH = 5, 6, 4, 3, 8
LENGTHS = np.array([8, 5, 1])
MASK = (np.arange(LENGTH) < LENGTHS[:, None]).astype(np.int32)
X = np.random.default_rng(0).normal(size=(ROWS, LENGTH, D)).astype(np.float32)


def params_of(model: Lstm, scale: float = 0.6) -> Any:
    fresh = nn.unbox(model.init(jax.random.key(0), X, MASK))["params"]
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda leaf: rng.normal(0, scale, leaf.shape).astype(np.float32), fresh)


def run(model: Lstm, params: Any, *args: Any, **more: Any) -> tuple[np.ndarray, State]:
    return model.apply({"params": params}, *args, **more, method="run")  # type: ignore[return-value]


def by_token(params: Any, sequence: np.ndarray, clip: float) -> np.ndarray:
    """The equations, token by token: [L, D] -> [L, P]."""
    p = {name: leaf.astype(np.float64) for name, leaf in params.items()}
    hidden, cell, outputs = np.zeros(P), np.zeros(F), []
    for token in sequence.astype(np.float64):
        gates = token @ p["kernel"] + hidden @ p["recurrent_kernel"] + p["bias"]
        i, f, o = (1 / (1 + np.exp(-gates[at * F : (at + 1) * F])) for at in (0, 1, 3))
        cell = np.clip(f * cell + i * np.tanh(gates[2 * F : 3 * F]), -clip, clip)
        hidden = np.clip((o * np.tanh(cell)) @ p["projection"], -clip, clip)
        outputs.append(hidden)
    return np.stack(outputs)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("clip", [None, 0.3])
def test_projection_and_clipping_are_the_equations(reverse: bool, clip: float | None) -> None:
    model = Lstm(F, reverse, projection=P, clip=clip)
    params = params_of(model)
    found, _ = run(model, params, X, MASK)
    turn = slice(None, None, -1 if reverse else 1)
    for row, length in enumerate(LENGTHS):
        expected = by_token(params, X[row, :length][turn], clip or np.inf)[turn]
        np.testing.assert_allclose(found[row, :length], expected, atol=1e-6)
    assert np.all(np.asarray(found)[MASK == 0] == 0)
    assert (np.abs(found).max() <= 0.3) == (clip is not None)


def test_two_windows_with_their_state_are_one_long_window() -> None:
    model = Lstm(F, reverse=False, projection=P, clip=3.0)
    params = params_of(model)
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), params)
        x, mask = jnp.asarray(X, jnp.float64), np.ones_like(MASK)
        whole, last = run(model, wide, x, mask)
        first, state = run(model, wide, x[:, :3], mask[:, :3])
        second, end = run(model, wide, x[:, 3:], mask[:, 3:], state)
        apart, _ = run(model, wide, x[:, 3:], mask[:, 3:])
        np.testing.assert_allclose(np.concatenate([first, second], axis=1), whole, atol=1e-10, rtol=0)
        for got, expected in zip(end, last, strict=True):
            np.testing.assert_allclose(got, expected, atol=1e-10, rtol=0)
        assert np.abs(apart - second).max() > 0.01  # the power check


@pytest.mark.parametrize("reverse", [False, True])
def test_a_sequence_that_begins_in_a_row_is_as_if_alone(reverse: bool) -> None:
    model, ids = Lstm(F, reverse, projection=P), np.array([[1, 1, 1, 2, 2, 2, 2, 0]] * ROWS)
    params, mask = params_of(model), (ids > 0).astype(np.int32)
    begins = np.isin(np.arange(LENGTH), (2, 6) if reverse else (0, 3))[None].repeat(ROWS, axis=0)
    packed, _ = run(model, params, X, mask, begins=begins)
    for part in (slice(0, 3), slice(3, 7)):
        alone, _ = run(model, params, X[:, part], mask[:, part])
        np.testing.assert_allclose(packed[:, part], alone, atol=1e-6)
    assert np.abs(run(model, params, X, mask)[0] - packed).max() > 0.01  # the power check


def test_the_state_skips_padding_and_the_forget_gate_begins_open() -> None:
    model = Lstm(F, reverse=False, projection=P)
    params = params_of(model)
    _, state = run(model, params, X, MASK)
    _, shorter = run(model, params, X[1:2, :5], MASK[1:2, :5])
    for one, other in zip(state, shorter, strict=True):
        np.testing.assert_allclose(one[1], other[0], atol=1e-6)
    plain, opened = (
        nn.unbox(Lstm(F, False, P, forget_bias=bias).init(jax.random.key(0), X, MASK))["params"] for bias in (0.0, 1.0)
    )
    gates = np.split(np.asarray(opened["bias"] - plain["bias"]), 4)
    np.testing.assert_allclose(gates, [np.zeros(F), np.ones(F), np.zeros(F), np.zeros(F)], atol=1e-6)
