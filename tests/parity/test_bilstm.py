"""The BiLSTM against ``torch.nn.LSTM``, bidirectional, over packed sequences: outputs and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the parity environment: make test-parity")

from bert_jax.models.bilstm import BiLstm
from tests.models.helpers import tiny

pytestmark = pytest.mark.parity
D, F, LENGTH = 12, 8, 9
LENGTHS = np.array([9, 9, 5, 1])


def ours(theirs, num_layers: int, of=lambda p: p):
    """Return the parameters of torch, each after ``of``, as our tree."""
    tree = {}
    for i in range(num_layers):
        tree[f"layer_{i}"] = {}
        for name, suffix in (("forward", ""), ("backward", "_reverse")):
            get = lambda kind, i=i, s=suffix: of(getattr(theirs, f"{kind}_l{i}{s}")).detach().numpy()  # noqa: E731
            tree[f"layer_{i}"][name] = {
                "kernel": get("weight_ih").T,
                "recurrent_kernel": get("weight_hh").T,
                "bias": get("bias_ih") + get("bias_hh"),
            }
    return tree


@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-5), ("float64", 1e-10)])
def test_outputs_and_gradients(num_layers: int, dtype: str, tolerance: float) -> None:
    torch.manual_seed(0)
    theirs = torch.nn.LSTM(D, F, num_layers, batch_first=True, bidirectional=True).to(getattr(torch, dtype))
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(0, 0.5)
    rng = np.random.default_rng(0)
    x, weights = (rng.normal(size=(4, LENGTH, n)).astype(dtype) for n in (D, 2 * F))
    packed = torch.nn.utils.rnn.pack_padded_sequence(torch.tensor(x), LENGTHS, batch_first=True)
    out, _ = torch.nn.utils.rnn.pad_packed_sequence(theirs(packed)[0], batch_first=True, total_length=LENGTH)
    (out * torch.tensor(weights)).sum().backward()
    mask = (np.arange(LENGTH) < LENGTHS[:, None]).astype(np.int32)
    with jax.enable_x64(dtype == "float64"):
        params = jax.tree.map(jnp.asarray, ours(theirs, num_layers))

        def total(params):
            batch = {"sequence": jnp.asarray(x)}, {"attention_mask": mask}
            found = BiLstm(tiny(), F, num_layers).apply({"params": params}, *batch, None)["sequence"]
            return jnp.sum(found * weights), found

        (_, found), gradients = jax.value_and_grad(total, has_aux=True)(params)
    np.testing.assert_allclose(found, out.detach().numpy(), atol=tolerance, rtol=0)
    # Their two biases are added up, so each has the gradient of the sum.
    expected = ours(theirs, num_layers, of=lambda p: p.grad)
    for layer in expected.values():
        for direction in layer.values():
            direction["bias"] = direction["bias"] / 2
    for got, want in zip(jax.tree.leaves(gradients), jax.tree.leaves(expected), strict=True):
        assert np.abs(np.asarray(got) - want).max() <= tolerance * max(np.abs(want).max(), 1.0)
