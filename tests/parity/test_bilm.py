"""ELMo against ``torch.nn.LSTM(proj_size)`` for each direction, layer and row: vectors, loss and gradients.

It also writes the golden arrays that ``make test`` checks without torch.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the parity environment: make test-parity")

from bert_jax.interchange.conversion import leaf
from tests.models.golden import write_golden
from tests.models.golden_bilm import LAYERS, LENGTH, LENGTHS, F, P, V, batch_of, config_of, loss_of

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore:LSTM with projections is not supported"),  # by a fast library of torch
]
DIRECTIONS = ("forward", "backward")


class Theirs(torch.nn.Module):
    """Embeddings, two stacks of LSTMs with a residual connection from the second layer on, one softmax."""

    def __init__(self):
        super().__init__()
        self.words, self.softmax = torch.nn.Embedding(V, P), torch.nn.Linear(P, V)
        for name in DIRECTIONS:
            layers = [torch.nn.LSTM(P, F, proj_size=P) for _ in range(LAYERS)]
            setattr(self, f"{name}_layers", torch.nn.ModuleList(layers))

    def loss(self, batch):
        """Return the mean of the two mean losses, and the hidden states of each row [N + 1, length, 2P]."""
        losses, hidden = {name: [] for name in DIRECTIONS}, []
        for ids, length in zip(batch["input_ids"], LENGTHS, strict=True):
            ids = torch.tensor(ids[:length]).long()
            of_row = []
            for name in DIRECTIONS:
                read = ids if name == "forward" else ids.flip(0)
                x = self.words(read)
                layers = [x]
                for i, lstm in enumerate(getattr(self, f"{name}_layers")):
                    y, _ = lstm(x)
                    x = y + x if i else y
                    layers.append(x)
                chances = torch.log_softmax(self.softmax(x), dim=-1)
                losses[name].append(-chances[:-1].gather(1, read[1:, None])[:, 0])
                of_row.append(torch.stack([one if name == "forward" else one.flip(0) for one in layers]))
            hidden.append(torch.cat(of_row, dim=-1))
        return sum(torch.cat(of).mean() / 2 for of in losses.values()), hidden


def ours(theirs, of=lambda p: p):
    """Return the parameters of torch, each after ``of``, as our tree."""

    def get(parameter):
        return of(parameter).detach().numpy()

    encoder = {"embeddings": {"word_embeddings": get(theirs.words.weight)}}
    for name in DIRECTIONS:
        encoder[name] = {
            f"layer_{i}": {
                "kernel": get(lstm.weight_ih_l0).T,
                "recurrent_kernel": get(lstm.weight_hh_l0).T,
                "bias": get(lstm.bias_ih_l0) + get(lstm.bias_hh_l0),
                "projection": get(lstm.weight_hr_l0).T,
            }
            for i, lstm in enumerate(getattr(theirs, f"{name}_layers"))
        }
    head = {"word_embeddings": get(theirs.softmax.weight), "output_bias": get(theirs.softmax.bias)}
    return {"encoder": encoder, "mlm_head": head}


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-5), ("float64", 1e-12)])
def test_vectors_loss_and_gradients(dtype, tolerance):
    torch.manual_seed(0)
    theirs, batch = Theirs().to(getattr(torch, dtype)), batch_of()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(0, 0.4)
    expected, states = theirs.loss(batch)
    expected.backward()
    hidden = np.zeros((LAYERS + 1, len(LENGTHS), LENGTH, 2 * P), dtype)
    for row, of_row in enumerate(states):
        hidden[:, row, : of_row.shape[1]] = of_row.detach().numpy()
    with jax.enable_x64(dtype == "float64"):
        config = config_of(clip=None, dtype=dtype)
        params = jax.tree.map(jnp.asarray, ours(theirs))
        (loss, found), gradients = jax.value_and_grad(lambda p: loss_of(config, p, batch), has_aux=True)(params)
    assert abs(float(loss) - expected.item()) <= tolerance
    np.testing.assert_allclose(found, hidden, atol=tolerance, rtol=0)
    flat = jax.tree_util.tree_leaves_with_path(ours(theirs, of=lambda p: p.grad))
    named = {"/".join(key.key for key in path): value for path, value in flat}
    # Their two biases are added up, so each has the gradient of the sum.
    of_ours = {name: value / 2 if name.endswith("/bias") else value for name, value in named.items()}
    for name, want in of_ours.items():
        assert np.abs(np.asarray(leaf(gradients, name)) - want).max() <= tolerance * max(np.abs(want).max(), 1.0), name
    if dtype == "float32":
        write_golden("bilm", params, batch, of_ours, loss=expected.item(), hidden=hidden)
