"""The BiLSTM against a loop in numpy, one sequence at a time, and what padding must not do."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bert_jax.models.bilstm import BiLstm
from tests.models.helpers import tiny

D, F, LENGTH = 5, 4, 7
LENGTHS = np.array([7, 4, 1])
MASK = (np.arange(LENGTH) < LENGTHS[:, None]).astype(np.int32)
X = np.random.default_rng(0).normal(size=(3, LENGTH, D)).astype(np.float32)


def params_of(model: BiLstm) -> Any:
    fresh = nn.unbox(model.init(jax.random.key(0), {"sequence": X}, {"attention_mask": MASK}, None))["params"]
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda leaf: rng.normal(0, 0.5, leaf.shape).astype(np.float32), fresh)


def run(model: BiLstm, params: Any, x: np.ndarray, mask: np.ndarray) -> np.ndarray:
    outputs: Any = jax.jit(model.apply)({"params": params}, {"sequence": x}, {"attention_mask": mask}, None)
    return np.asarray(outputs["sequence"])


def lstm(params: Any, sequence: np.ndarray) -> np.ndarray:
    """The equations, token by token: [L, D] -> [L, F]."""

    def sigmoid(a: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-a))

    hidden = cell = np.zeros(F)
    outputs = []
    for token in sequence:
        i, f, g, o = np.split(token @ params["kernel"] + hidden @ params["recurrent_kernel"] + params["bias"], 4)
        cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
        hidden = sigmoid(o) * np.tanh(cell)
        outputs.append(hidden)
    return np.stack(outputs)


def expected(params: Any, num_layers: int) -> np.ndarray:
    out = np.zeros((len(X), LENGTH, 2 * F))
    for row, length in enumerate(LENGTHS):
        x = X[row, :length].astype(np.float64)
        for i in range(num_layers):
            layer = params[f"layer_{i}"]
            x = np.concatenate([lstm(layer["forward"], x), lstm(layer["backward"], x[::-1])[::-1]], axis=1)
        out[row, :length] = x
    return out


def test_one_and_two_layers_are_the_equations() -> None:
    for num_layers in (1, 2):
        model = BiLstm(tiny(), F, num_layers)
        params = params_of(model)
        np.testing.assert_allclose(run(model, params, X, MASK), expected(params, num_layers), atol=1e-6)


def test_padding_is_neither_read_nor_written() -> None:
    model = BiLstm(tiny(), F, 2)
    params = params_of(model)
    before = run(model, params, X, MASK)
    assert np.all(before[MASK == 0] == 0)
    noisy = np.where(MASK[..., None] > 0, X, 100.0).astype(np.float32)
    np.testing.assert_array_equal(run(model, params, noisy, MASK), before)
    wider = np.pad(X, ((0, 0), (0, 3), (0, 0)), constant_values=9.0), np.pad(MASK, ((0, 0), (0, 3)))
    np.testing.assert_allclose(run(model, params, *wider)[:, :LENGTH], before, atol=1e-6)
    assert np.abs(run(model, params, noisy, np.ones_like(MASK)) - before)[1, :4].max() > 0.1  # the power check


def test_every_token_reaches_every_other() -> None:
    model = BiLstm(tiny(), F, 1)
    params = params_of(model)
    before = run(model, params, X, MASK)
    changed = X.copy()
    changed[0, 3] += 1.0
    difference = np.abs(run(model, params, changed, MASK) - before)[0]
    assert np.all(difference[3:, :F].max(axis=1) > 1e-6)  # forward: from there on
    assert np.all(difference[:3, :F] == 0)
    assert np.all(difference[:4, F:].max(axis=1) > 1e-6)  # backward: up to there
    assert np.all(difference[4:, F:] == 0)


def test_fresh_parameters_are_small_uniform_and_shaped() -> None:
    model = BiLstm(tiny(), 16, 2)
    params = nn.unbox(model.init(jax.random.key(0), {"sequence": X}, {"attention_mask": MASK}, None))["params"]
    assert params["layer_1"]["backward"]["kernel"].shape == (32, 64)
    largest = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(params))
    assert 0.24 < largest <= 0.25
