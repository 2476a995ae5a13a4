"""The stochastic answer network against layers of torch, GRUCell among them: log probabilities and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the parity environment: make test-parity")

from tests.models.test_san import BATCH, MASK, TYPES, B, D, K, X, exact, head, params_of, run

pytestmark = pytest.mark.parity
assert exact  # the fixture of float64
STEPS = 5


def by_torch(params, x):
    """Return log probabilities [B, K] of the mean over steps, computed with layers of torch."""
    layers = {name: torch.nn.Linear(*params[name]["kernel"].shape) for name in ("pooling", "attention", "dense")}
    tensors = {}
    for name, layer in layers.items():
        layer.double()
        tensors |= {(name, "kernel"): layer.weight, (name, "bias"): layer.bias}
    cell = torch.nn.GRUCell(D, D).double()
    tensors |= {("gru", "kernel"): cell.weight_ih, ("gru", "bias"): cell.bias_ih}
    tensors |= {("gru", "recurrent_kernel"): cell.weight_hh, ("gru", "recurrent_bias"): cell.bias_hh}
    with torch.no_grad():
        for (part, leaf), tensor in tensors.items():
            tensor.copy_(torch.tensor(params[part][leaf].T))
    mask, types = torch.tensor(MASK) > 0, torch.tensor(TYPES) > 0

    def attend(scores, which):
        return torch.einsum("bld,bl->bd", x, scores.masked_fill(~which, -torch.inf).softmax(-1))

    state, every = attend(layers["pooling"](x)[..., 0], mask & types), []
    for _ in range(STEPS):
        read = attend(torch.einsum("bld,bd->bl", x, layers["attention"](state)), mask & ~types)
        both = torch.cat([state, read, (state - read).abs(), state * read], -1)
        every.append(layers["dense"](both).softmax(-1))
        state = cell(read, state)
    return torch.stack(every).mean(0).log(), tensors


def test_outputs_and_gradients() -> None:
    model = head(STEPS)
    params, x = params_of(model), torch.tensor(X, requires_grad=True)
    weights = np.random.default_rng(2).normal(size=(B, K))
    theirs, tensors = by_torch(params, x)
    np.testing.assert_allclose(run(model, params), theirs.detach().numpy(), atol=1e-10)
    (theirs * torch.tensor(weights)).sum().backward()

    def total(params, x):
        return jnp.sum(model.apply({"params": params}, {"sequence": x}, BATCH, None)["logits"] * weights)

    of_params, of_x = jax.grad(total, argnums=(0, 1))(params, X)
    np.testing.assert_allclose(of_x, x.grad.numpy(), atol=1e-10)
    for (part, leaf), tensor in tensors.items():
        np.testing.assert_allclose(of_params[part][leaf], tensor.grad.numpy().T, atol=1e-10, err_msg=f"{part} {leaf}")
