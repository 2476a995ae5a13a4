"""One direction of the LSTM with a projection against ``torch.nn.LSTM(proj_size)``: outputs, state and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the parity environment: make test-parity")

from bert_jax.models.lstm import Lstm, State

pytestmark = pytest.mark.parity
D, F, P, ROWS, LENGTH = 12, 10, 6, 3, 9


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported")  # by a fast library of torch
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-5), ("float64", 1e-10)])
def test_outputs_states_and_gradients(reverse: bool, dtype: str, tolerance: float) -> None:
    torch.manual_seed(0)
    theirs = torch.nn.LSTM(D, F, batch_first=True, proj_size=P).to(getattr(torch, dtype))
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(0, 0.5)
    rng = np.random.default_rng(0)
    shapes = (ROWS, LENGTH, D), (ROWS, LENGTH, P), (1, ROWS, P), (1, ROWS, F)
    x, weights, hidden, cell = (rng.normal(size=shape).astype(dtype) for shape in shapes)
    turn = slice(None, None, -1 if reverse else 1)
    out, last = theirs(torch.tensor(x[:, turn].copy()), (torch.tensor(hidden), torch.tensor(cell)))
    (out * torch.tensor(weights[:, turn].copy())).sum().backward()

    def ours(of):
        get = lambda kind: of(getattr(theirs, f"{kind}_l0")).detach().numpy()  # noqa: E731
        return {
            "kernel": get("weight_ih").T,
            "recurrent_kernel": get("weight_hh").T,
            "bias": get("bias_ih") + get("bias_hh"),
            "projection": get("weight_hr").T,
        }

    with jax.enable_x64(dtype == "float64"):
        params = jax.tree.map(jnp.asarray, ours(lambda p: p))

        def total(params):
            state = State(jnp.asarray(hidden[0]), jnp.asarray(cell[0]))
            mask = np.ones((ROWS, LENGTH), np.int32)
            found = Lstm(F, reverse, P).apply({"params": params}, jnp.asarray(x), mask, state, method="run")
            return jnp.sum(found[0] * weights), found

        (_, (found, state)), gradients = jax.value_and_grad(total, has_aux=True)(params)
    np.testing.assert_allclose(found[:, turn], out.detach().numpy(), atol=tolerance, rtol=0)
    for one, other in zip(state, last, strict=True):
        np.testing.assert_allclose(one, other[0].detach().numpy(), atol=tolerance, rtol=0)
    # Their two biases are added up, so each has the gradient of the sum.
    expected = ours(lambda p: p.grad)
    expected["bias"] = expected["bias"] / 2
    for name, want in expected.items():
        assert np.abs(np.asarray(gradients[name]) - want).max() <= tolerance * max(np.abs(want).max(), 1.0), name
