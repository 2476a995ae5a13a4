"""Optimizers against the optimizers of torch. The fast tests have the arrays of Adamax."""

import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the parity environment: make test-parity")

from bert_jax.training.optimizers import adagrad, adamax
from tests.training.test_updates import ADAMAX_GRADIENTS, ADAMAX_WEIGHTS, run

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("default")]


def by_torch(weights, gradients):
    """Return the weights [N, ...] after each update of torch.optim.Adamax with the rate 0.01."""
    parameter = torch.tensor(weights, dtype=torch.float64, requires_grad=True)
    optimizer, found = torch.optim.Adamax([parameter], lr=0.01, eps=1e-6), []
    for gradient in gradients:
        parameter.grad = torch.tensor(gradient, dtype=torch.float64)
        optimizer.step()
        found.append(parameter.detach().numpy().copy())
    return np.array(found)


def test_the_arrays_of_adamax():
    np.testing.assert_allclose(by_torch([1.0, -2.0], ADAMAX_GRADIENTS), ADAMAX_WEIGHTS, rtol=1e-7)


def test_thirty_updates_of_adagrad():
    rng = np.random.default_rng(0)
    weights, gradients = rng.normal(size=(5, 3)), rng.normal(size=(30, 5, 3)) * (rng.random((30, 5, 3)) < 0.7)
    parameter = torch.tensor(weights, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adagrad([parameter], lr=0.01, initial_accumulator_value=0.5, eps=0.0)
    for gradient in gradients:
        parameter.grad = torch.tensor(gradient, dtype=torch.float64)
        optimizer.step()
    config = adagrad.Optimizer(initial_accumulator=0.5, clip_norm=None)
    found = run(config, {"kernel": jnp.asarray(weights, jnp.float32)}, [{"kernel": jnp.asarray(g)} for g in gradients])
    np.testing.assert_allclose(found["kernel"], parameter.detach().numpy(), atol=2e-6)


def test_thirty_updates_of_adamax():
    rng = np.random.default_rng(0)
    weights, gradients = rng.normal(size=(5, 3)), rng.normal(size=(30, 5, 3)) * (rng.random((30, 5, 3)) < 0.7)
    config = adamax.Optimizer(weight_decay=0.0, clip_norm=None)
    found = run(config, {"kernel": jnp.asarray(weights, jnp.float32)}, [{"kernel": jnp.asarray(g)} for g in gradients])
    np.testing.assert_allclose(found["kernel"], by_torch(weights, gradients)[-1], atol=2e-6)
