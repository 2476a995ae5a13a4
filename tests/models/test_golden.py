"""Outputs, loss and gradients that PyTorch gave for stored weights (written by tests/parity/test_hugging_face.py)."""

import jax
import numpy as np

from bert_jax.models.encoders import bert
from tests.models.golden import GOLDEN, loss_of, tree_of


def test_what_torch_gave() -> None:
    stored = np.load(GOLDEN)
    params, batch = (tree_of(stored, kind) for kind in ("params", "batch"))
    config = bert.Config(64, hidden_size=32, num_layers=3, num_heads=4, mlp_dim=64, max_length=32)
    (loss, outputs), grads = jax.jit(jax.value_and_grad(lambda p: loss_of(config, p, batch), has_aux=True))(params)
    np.testing.assert_allclose(outputs["mlm_logits"], stored["mlm_logits"], atol=2e-5, rtol=0)
    np.testing.assert_allclose(outputs["nsp_logits"][:, 0], stored["nsp_logits"], atol=2e-5, rtol=0)
    assert abs(float(loss) - float(stored["loss"])) <= 2e-5
    query = grads["encoder"]["layer_0"]["attention"]["query"]["kernel"].reshape(32, 32).T
    for found, expected in (
        (query, stored["query_gradient"]),
        (grads["encoder"]["embeddings"]["word_embeddings"], stored["word_gradient"]),
    ):
        assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()
